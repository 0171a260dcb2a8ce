# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The page at /: its route without a browser, and the page itself in Chromium."""

import base64
import hashlib
import html.parser
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import browser
import engines
import httpx
import pytest
from browser import Browser, Page
from clients import KEY, Running, chat_ids

from dovetail_infer import Sampling
from dovetail_infer.server import app
from dovetail_infer.testing import ByteTokenizer

HELLO = [{"role": "user", "content": "Hello"}]
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
in_browser = pytest.mark.thorough("a browser")


class _Parts(html.parser.HTMLParser):
    """Attributes of all elements, and the texts of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        self._within = tag

    def handle_data(self, data: str) -> None:
        if self._within in self.texts:
            self.texts[self._within].append(data)

    def handle_endtag(self, tag: str) -> None:
        self._within = ""


@pytest.mark.capability("page of the server")
def test_the_page_is_open_and_may_load_nothing(server):
    response = httpx.get(f"{server.url}/")  # without a key
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    parts = _Parts(response.text)
    policy = dict(
        directive.split(" ", 1)
        for directive in response.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for name in ("script", "style"):
        (text,) = parts.texts[name]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{name}-src"] == f"'sha256-{digest}'"
    # Handlers and styles in attributes would need 'unsafe-inline'.
    names = {name for name, _ in parts.attributes}
    assert not any(name.startswith("on") or name in ("style", "src") for name in names)
    assert [value for name, value in parts.attributes if name == "href"] == ["data:,"]
    assert "innerHTML" not in response.text
    assert KEY not in response.text


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if shutil.which(browser.CHROMIUM) is None:
        pytest.skip(f"needs {browser.CHROMIUM} on the path")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Running]]:
    """Starts servers without keys, greedy unless a request says else."""
    servers: list[Running] = []

    def start(tokenizer: ByteTokenizer | None = None, **options: Any) -> Running:
        tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
        engine = engines.engine(engines.byte_decoder(), tokenizer=tokenizer)
        options = {"chat": chat_ids, "defaults": Sampling(temperature=0), **options}
        application = app(engine, name="tiny", tokenizer=tokenizer, **options)
        servers.append(Running(engine, application))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def plain(serve: Callable[..., Running]) -> Running:
    return serve()


@pytest.fixture
def show(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages of servers. None may ask another host, break the policy, or raise an error."""
    pages: list[tuple[Page, str]] = []

    def opened(server: Running, **options: Any) -> Page:
        page = Page(chromium, f"{server.url}/", **options)
        pages.append((page, server.url))
        return page

    yield opened
    for page, url in pages:
        sent = [event["request"]["url"] for event in page.events("Network.requestWillBeSent")]
        assert all(address.startswith((f"{url}/", "data:")) for address in sent), sent
        entries = [event["entry"] for event in page.events("Log.entryAdded")]
        errors = [entry for entry in entries if entry["level"] == "error"]
        assert [e for e in errors if e["source"] != "network"] == []  # statuses are meant
        assert page.events("Runtime.exceptionThrown") == []
        page.close()


def ask(page: Page, text: str, **parameters: str) -> None:
    """Fills in the form and sends it."""
    fill(page, text, **parameters)
    page.click("#send")


def fill(page: Page, text: str, **parameters: str) -> None:
    page.until("byId('model').options.length")
    for name, value in {"max_tokens": "8", **parameters}.items():
        page.write(f"#{name}", value)
    page.write("#draft", text)


def answer(page: Page) -> str:
    """Returns the text of the last answer, when it is whole."""
    page.until("running === null && turns.length && turns.at(-1).role === 'assistant'")
    return page.value("turns.at(-1).text.textContent")


def own(server: Running, messages: list[dict[str, Any]], **options: Any) -> str:
    sampling = Sampling(**{"max_tokens": 8, "temperature": 0, **options})
    return server.engine.generate([chat_ids(messages)], sampling)[0].text


@pytest.mark.capability("page of the server")
@in_browser
def test_a_chat_is_streamed_with_its_parameters(plain, show):
    page = show(plain)
    fill(page, "Hello", temperature="0.8", seed="7", top_k="40", stop="zz\\n\nyy", system="Be")
    page.press("Enter")
    messages = [{"role": "system", "content": "Be"}, *HELLO]
    options = {"temperature": 0.8, "seed": 7, "top_k": 40, "stop": ("zz\n", "yy")}
    text = own(plain, messages, **options)
    assert answer(page) == text != ""
    assert page.value("turns.at(-1).text.childNodes.length") > 1  # it came in pieces
    (sent,) = [
        event["request"]
        for event in page.events("Network.requestWillBeSent")
        if event["request"]["method"] == "POST"
    ]
    body = {"model": "tiny", "messages": messages, "stream": True, "max_tokens": 8, **options}
    body |= {"stream_options": {"include_usage": True}, "stop": ["zz\n", "yy"]}
    assert json.loads(sent["postData"]) == body
    assert json.loads(page.value("JSON.stringify(request()[1])")) == body
    measures = page.value("turns.at(-1).measures.textContent")
    assert "first token" in measures
    assert "tokens/s" in measures
    assert page.value("turns.at(-1).node.ariaBusy") == "false"


@in_browser
def test_a_conversation_is_retried_edited_and_cleared(plain, show):
    page = show(plain)
    ask(page, "Hello")
    first = answer(page)
    ask(page, "More")
    messages = [
        *HELLO,
        {"role": "assistant", "content": first},
        {"role": "user", "content": "More"},
    ]
    assert answer(page) == own(plain, messages)
    page.click("#retry")
    assert answer(page) == own(plain, messages)
    assert page.value("turns.length") == 4
    page.click("#edit")
    assert page.value("byId('draft').value") == "More"
    assert page.value("turns.length") == 2
    page.click("#clear")
    assert page.value("turns.length + document.querySelectorAll('article').length") == 0


@in_browser
def test_stop_ends_the_request(plain, show):
    page = show(plain)
    plain.engine.pause()
    aborted = plain.engine.stats().finished.get("abort", 0)
    ask(page, "Hello", max_tokens="40")
    page.until("!byId('stop-answer').hidden && running")
    end = time.monotonic() + 60
    while plain.engine.stats().waiting == 0:
        assert time.monotonic() < end
    page.click("#stop-answer")
    plain.engine.resume()
    answer(page)
    assert "stopped" in page.value("turns.at(-1).measures.textContent")
    while plain.engine.stats().finished.get("abort", 0) == aborted:
        assert time.monotonic() < end
    assert page.value("byId('send').hidden") is False


@in_browser
def test_errors_are_in_the_servers_words(plain, show):
    page = show(plain)
    for name, wrong in (("temperature", "-1"), ("top_p", "warm"), ("max_tokens", "900")):
        ask(page, "Hello", **{name: wrong})
        answer(page)
        body = json.loads(page.value("JSON.stringify(request()[1])"))
        refused = httpx.post(f"{plain.url}/v1/chat/completions", json=body).json()
        said = page.value("turns.at(-1).node.querySelector('[role=alert]').textContent")
        assert said == refused["error"]["message"]
        assert name in said
        page.value(f"byId('{name}').value = ''")
        page.click("#clear")


@in_browser
def test_probabilities_are_shown_by_mouse_keys_and_touch(plain, show):
    first = engines.logprobs(engines.byte_decoder(), chat_ids(HELLO))[-1]
    for size in ((1280, 900), browser.PHONE):
        page = show(plain, size=size)
        page.value("byId('settings').open = true; byId('logprobs').checked = true")
        ask(page, "Hello")
        page.value("byId('settings').open = false")
        answer(page)
        assert page.value("turns.at(-1).text.querySelectorAll('.token').length") > 1
        assert page.value("byId('tip').hidden") is True
        (page.tap if size == browser.PHONE else page.hover)(".assistant .token")
        page.until("!byId('tip').hidden")
        rows = page.value(
            "[...document.querySelectorAll('#tip tr')].map((row) => row.cells[1].textContent)"
        )
        likeliest = sorted(first, reverse=True)[:5]
        # A share below 10 % is shown with two decimals; logits are float32 on both sides.
        for row, logprob in zip(rows, likeliest, strict=True):
            assert abs(float(row.rstrip(" %")) - 100 * math.exp(logprob)) < 0.006
        box = page.value("JSON.stringify(byId('tip').getBoundingClientRect())")
        assert json.loads(box)["left"] >= 0
        assert json.loads(box)["right"] <= size[0]
    page.value("document.querySelector('.assistant .token').focus()")
    page.press("ArrowRight")
    assert page.value("document.activeElement === document.querySelectorAll('.token')[1]")
    assert page.value("byId('tip').hidden") is False
    page.press("Escape")
    assert page.value("byId('tip').hidden") is True


@in_browser
def test_a_phone_needs_no_sideways_scroll(plain, show):
    page = show(plain, size=browser.PHONE)
    fill(page, "W" * 36)
    page.press("Enter")  # a new line
    assert page.value("turns.length") == 0
    page.tap("#send")
    answer(page)
    for opened in ("false", "true"):
        page.value(f"document.querySelectorAll('details').forEach((d) => {{ d.open = {opened}; }})")
        for part in ("document.documentElement", "byId('log')", "byId('settings')"):
            assert page.value(f"{part}.scrollWidth - {part}.clientWidth") == 0
        wide = page.value(
            "[...document.querySelectorAll('body *')].filter((node) => "
            f"node.getBoundingClientRect().right > {browser.PHONE[0]}).map((n) => n.outerHTML)"
        )
        assert wide == []
    assert page.value("byId('send').getBoundingClientRect().bottom") <= browser.PHONE[1]


class _Hostile(ByteTokenizer):
    """Each token of an answer is HTML with a script."""

    def decode(self, ids: Any) -> str:
        return HOSTILE * len(ids)

    decode_with_specials = decode


@in_browser
@pytest.mark.parametrize("likeliest", ["false", "true"])
def test_a_hostile_answer_stays_text(serve, show, likeliest):
    server = serve(_Hostile(), defaults=Sampling(temperature=0, ignore_eos=True))
    page = show(server)
    page.value(f"byId('logprobs').checked = {likeliest}")
    ask(page, "Hello", max_tokens="2")
    assert answer(page) == 2 * HOSTILE
    if likeliest == "true":
        page.hover(".assistant .token")
        page.until("!byId('tip').hidden")
    assert page.value("document.querySelectorAll('img').length") == 0
    assert page.value("document.title") == "Dovetail chat"


@in_browser
def test_a_key_is_asked_for_and_kept_in_the_tab(server, show):
    page = show(server)
    page.until("!byId('login').hidden && byId('problem').textContent")
    assert "Authorization: Bearer KEY" in page.value("byId('problem').textContent")
    for key, shown in (("sk-wrong", "!byId('login').hidden"), (KEY, "byId('login').hidden")):
        page.write("#key", key)
        page.press("Enter")
        page.until(f"sessionStorage.getItem('key') === {key!r}")
        page.until(f"{shown} && byId('model').options.length === {int(key == KEY)}")
    page.until("byId('problem').textContent === ''")
    ask(page, "Hello", temperature="0")
    assert answer(page) == own(server, HELLO)
    page.until("byId('load').textContent.startsWith('running 0 · waiting 0 · ')")
    assert page.value("localStorage.length") == 0
    assert KEY not in page.value("byId('request').textContent")


@in_browser
def test_a_model_without_a_template_continues_the_text(serve, show):
    server = serve(chat=None)
    page = show(server)
    page.value("byId('logprobs').checked = true")
    ask(page, "Hel")
    (first,) = server.engine.generate(["Hel"], Sampling(max_tokens=8, temperature=0))
    answer(page)
    assert page.value("turns.at(-1).content") == first.text
    assert "no chat template" in page.value("byId('note').textContent")
    assert page.value("document.querySelectorAll('.token').length") == len(first.tokens)
    ask(page, "lo")
    answer(page)
    (more,) = server.engine.generate([f"Hel{first.text}lo"], Sampling(max_tokens=8, temperature=0))
    assert page.value("turns.at(-1).content") == more.text


@in_browser
def test_reasoning_is_folded_and_calls_are_text(plain, show):
    page = show(plain)
    call = {"function": {"name": "add", "arguments": '{"a":'}}, {"function": {"arguments": " 1}"}}
    for delta in (
        {"reasoning_content": "Beca"},
        {"reasoning_content": "use"},
        {"content": "Two"},
        {"tool_calls": call[:1]},
        {"tool_calls": call[1:]},
    ):
        first = "addTurn('assistant')" if "Beca" in str(delta) else "turns.at(-1)"
        page.value(f"show({first}, {{delta: {json.dumps(delta)}}})")
    assert page.value("turns.at(-1).reasoning.textContent") == "Because"
    assert page.value("turns.at(-1).fold.hidden || turns.at(-1).fold.open") is False
    assert page.value("turns.at(-1).content") == "Two"
    assert page.value("turns.at(-1).text.textContent") == 'Twoadd {"a": 1}'


@in_browser
def test_controls_have_names_and_a_visible_focus(plain, show):
    page = show(plain)
    nameless = page.value(
        "[...document.querySelectorAll('input, select, textarea')].filter((n) => !n.labels.length)"
        ".concat([...document.querySelectorAll('button')].filter((n) => !n.textContent)).length"
    )
    assert nameless == 0
    page.until("document.activeElement === byId('draft')")
    assert page.value("getComputedStyle(byId('draft')).outlineStyle") == "solid"
    assert page.value("byId('log').getAttribute('role')") == "log"
