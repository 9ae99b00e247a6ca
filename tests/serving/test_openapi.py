"""Requests that are made from the server's own OpenAPI document: nothing may fail, and every answer has its stated shape."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.serving import PATIENCE, RunningServer

pytestmark = [pytest.mark.end_to_end]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 20  # requests to each route


def test_answers_have_their_stated_shape(server: RunningServer) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 20
    for operation in operations:
        check_operation(operation)


def check_operation(operation: Any) -> None:
    """Send requests that are made for an operation, and check the answers."""

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy())
    def check(case: Any) -> None:
        if "name" in case.path_parameters and len(case.path_parameters["name"]) % 2:
            case.path_parameters["name"] = "encoder"  # most random names are unknown
        case.call_and_validate(checks=CHECKS, timeout=PATIENCE)

    check()
