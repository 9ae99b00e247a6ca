"""A server with tiny models for the tests of its routes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.serving import RunningServer, decoder, encoder, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """Run a server with an encoder and a decoder."""
    with running_server({"encoder": encoder(), "decoder": decoder()}) as found:
        yield found
