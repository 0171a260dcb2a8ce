# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""TLS and addresses."""

import http.client
import socket
import ssl
import subprocess

import pytest

from dovetail_serve.serving.options import check_tls


def certificate(folder):
    """Makes a certificate for 127.0.0.1 with openssl and returns the paths of it and its key."""
    chain, key = folder / "chain.pem", folder / "key.pem"
    line = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-out", str(chain), "-keyout", str(key)),
    ]
    subprocess.run(line, check=True, capture_output=True)
    return chain, key


@pytest.mark.thorough
def test_tls(exported, serving, tmp_path):
    tls = certificate(tmp_path)
    with serving(exported[0], http={"tls": tls}) as served:
        context = ssl.create_default_context(cafile=tls[0])
        client = http.client.HTTPSConnection("127.0.0.1", served.port, timeout=30, context=context)
        client.request("GET", "/v2/health/ready")
        assert client.getresponse().status == 200
        client.close()
        client = http.client.HTTPSConnection("127.0.0.1", served.port, timeout=30)
        with pytest.raises(ssl.SSLCertVerificationError):
            client.request("GET", "/v2/health/ready")
        client.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_all_addresses_of_ipv6_are_those_of_ipv4_too(exported, serving):
    with serving(exported[0], start=False, http={"host": "::"}) as served:
        for address in ("127.0.0.1", "::1"):
            client = http.client.HTTPConnection(address, served.port, timeout=30)
            client.request("GET", "/v2")
            assert client.getresponse().status == 200
            client.close()


def test_certificates_and_keys_that_do_not_fit_are_refused_by_name(tmp_path):
    (tmp_path / "other").mkdir()
    chain, key = certificate(tmp_path)
    _, another = certificate(tmp_path / "other")
    locked = tmp_path / "locked.pem"
    line = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", locked]
    subprocess.run(line, check=True, capture_output=True)
    (text := tmp_path / "text.pem").write_text("text")
    check_tls(chain, key)
    for pair, part in (
        ((chain, another), "its own private key, both in PEM"),
        ((text, key), "OpenSSL refuses"),
        ((chain, text), "OpenSSL refuses"),
        ((chain, locked), "must have no passphrase"),
    ):
        with pytest.raises(ValueError, match=part) as error:
            check_tls(*pair)
        for path in pair:
            assert str(path) in str(error.value)


def test_an_address_of_another_machine_is_refused(exported, serving):
    with (
        pytest.raises(OSError, match=r"listen on 192\.0\.2\.1:0, got: .*; choose another port, or"),
        serving(exported[0], start=False, http={"host": "192.0.2.1"}),
    ):
        pass


def test_a_missing_key_is_an_error(exported, serving, tmp_path):
    absent = tmp_path / "absent.pem"
    with (
        pytest.raises(OSError, match="No such file"),
        serving(exported[0], start=False, http={"tls": (absent, absent)}),
    ):
        pass
