# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import datetime
import json

import pytest

from dovetail_data import Template

USER = {"role": "user", "content": "Hi"}


@pytest.fixture
def model(tmp_path):
    """Saves a tokenizer_config.json with the fields, and files by name; gives the directory."""

    def save(files=(), **config):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        for name, text in dict(files).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return save


SPECIALS = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "lstrip": False},
    "pad_token": "<p>",
    "add_bos_token": True,
}
WRITER = "{{ bos_token }}{{ pad_token }}{{ eos_token }}{{ add_bos_token is defined }}"


def test_a_template_is_found_in_the_configuration(model):
    directory = model(chat_template=WRITER, **SPECIALS)
    for path in (directory, str(directory), directory / "tokenizer_config.json"):
        assert Template.load(path).render([USER]).text == "<s><p></s>False"


def test_a_file_of_its_own_goes_before_the_configuration(model):
    directory = model({"chat_template.jinja": WRITER + "é"}, chat_template="old", **SPECIALS)
    for path in (directory, directory / "chat_template.jinja"):
        assert Template.load(path).render([USER]).text == "<s><p></s>Falseé"


def test_one_of_several_templates_is_taken_by_name(model):
    several = [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]
    directory = model(chat_template=several)
    assert Template.load(directory).source == "d"
    assert Template.load(directory, name="rag").source == "r"
    model({"additional_chat_templates/tool_use.jinja": "t"}, chat_template=several)
    assert Template.load(directory, name="tool_use").source == "t"
    with pytest.raises(ValueError, match=r"got path='.*', name='x' with the templates \['default"):
        Template.load(directory, name="x")


def test_what_is_passed_goes_before_the_configuration(model):
    directory = model(chat_template=WRITER, **SPECIALS)
    template = Template.load(directory, bos="", eos="<e>", variables={"pad_token": "-"})
    assert template.render([USER]).text == "-<e>False"


def test_the_date_and_null_are_loaded_too(model):
    source = "{{ bos_token }}{{ strftime_now('%Y') }}"
    directory = model(chat_template=source, bos_token=None)
    template = Template.load(directory, now=datetime.datetime(2024, 7, 26))
    assert template.render([USER]).text == "2024"


def test_a_template_alone_must_be_told_its_tokens(tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ bos_token }}")
    with pytest.raises(ValueError, match=r"needs its text: got bos=None"):
        Template.load(tmp_path / "mine.jinja")
    assert Template.load(tmp_path / "mine.jinja", bos="<s>").render([USER]).text == "<s>"


def test_a_damaged_configuration_is_named(model):
    directory = model({"chat_template.jinja": "a"})
    (directory / "tokenizer_config.json").write_text('{"a":')
    with pytest.raises(
        ValueError, match=r"must be JSON in UTF-8: got .*tokenizer_config.json: .*Me"
    ):
        Template.load(directory)


def test_no_template_is_an_error(model, tmp_path):
    message = (
        r"must exist: got path='.*', name='default' with the templates \[\]. Give a .jinja file"
    )
    with pytest.raises(ValueError, match=message):
        Template.load(model(bos_token="<s>"))
    with pytest.raises(ValueError, match=message):
        Template.load(tmp_path / "nowhere")
