"""Deploy the server with Ray Serve, which runs replicas of its application on the machines of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretune.runtime.optional_imports import import_optional
from pretune.serving.limits import ServingLimits


def ray_application(
    models: Sequence[str],
    limits: ServingLimits | None = None,
    *,
    replicas: int = 1,
    threads: int = 1,
    token_file: str | None = None,
) -> Any:
    """Return an application for `ray.serve.run`, which runs replicas of the server with all models in each.

    Parameters
    ----------
    models
        Model folders that all machines see, each as PATH or as NAME=PATH.
    limits
        The limits of each replica.
    replicas
        The number of replicas, over which Ray Serve distributes requests.
    threads
        The CPU cores of each model of a replica.
    token_file
        File with the token of requests on each machine, instead of PRETUNE_TOKEN in the environment of the replicas.

    Examples
    --------
    >>> from ray import serve  # doctest: +SKIP
    >>> serve.run(ray_application(["/models/topics"], replicas=4))  # doctest: +SKIP
    """
    serve = import_optional("ray.serve", "a Ray Serve deployment")

    def build_app() -> Any:  # called in each replica, because an application and its models cannot be sent there
        from pretune.serving.app import create_app
        from pretune.serving.model_registry import ModelRegistry, parse_models
        from pretune.serving.server import find_token

        registry = ModelRegistry(parse_models(models), limits or ServingLimits(), threads=threads)
        return create_app(registry, token=find_token(Path(token_file) if token_file is not None else None))

    options = {"num_cpus": threads * len(models)}
    deployment = serve.deployment(num_replicas=replicas, ray_actor_options=options)(serve.ingress(build_app)())
    return deployment.bind()
