"""The section ``execution``: where Spark computes the batches, on this host or on a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, PlainValidator, SecretStr, WithJsonSchema, model_validator

from ha_engine.config.quantities import Address, Size, is_unspecified, split_address
from ha_engine.config.sections import Section
from ha_engine.config.server_tls import ServerTls, require_on_purpose

SECRET_CHARACTERS_MIN = 16
_LOCAL = r"local(\[([1-9][0-9]*|\*)(, *[1-9][0-9]*)?\])?"
_OBJECTS = re.compile(r"s3a://[a-z0-9][a-z0-9.-]+(/[^/?#\s]+)*/?")
_STANDALONE = r"spark://[^,/\s]+:[0-9]+(,[^,/\s]+:[0-9]+)*"
_YARN = "yarn"
_KUBERNETES = r"k8s://(https?://)?[^/:\s]+(:[0-9]{1,5})?(/\S*)?"


def _path_or_url(given: Path | str) -> Path | str:
    if isinstance(given, str | Path) and "://" not in str(given):
        return Path(given)
    if _OBJECTS.fullmatch(str(given)):
        return given
    raise ValueError(
        "this is neither a directory nor s3a://BUCKET/FOLDER; mount another storage as a directory"
    )


CheckpointPlace = Annotated[
    Path | str,
    PlainValidator(_path_or_url),
    WithJsonSchema({"type": "string", "format": "path"}),
]
"""A directory, or the URL of a folder on object storage as Spark and Hadoop write it."""


class ExecutorsConfig(Section):
    """The executors that each node's driver has on a cluster."""

    count: int = Field(default=2, ge=1, description="Number of executors of this node's driver.")
    cores: int = Field(default=1, ge=1, description="Number of tasks that an executor runs.")
    memory: Size = Field(
        default=1 << 30,
        ge=512 << 20,
        description="Heap of an executor's JVM. Its Python workers need memory beside it.",
    )


class KubernetesConfig(Section):
    """The pods of the executors on Kubernetes."""

    image: str = Field(
        default="",
        description="Image of the executors' containers. It has the engine at the path that the "
        "engine has on this node. Needed with a master k8s://URL.",
    )
    pod: str = Field(
        default="",
        description="Name of the pod in which this node runs, if it does. Kubernetes deletes the "
        "pods of executors with it.",
    )


class ExecutionTls(ServerTls):
    """Files (PEM) with which this node proves its identity to the executors."""

    ca: Path | None = Field(
        default=None,
        description="Certificate of the authority that signed the certificates of both nodes. The "
        "executors get it from the node.",
    )

    @model_validator(mode="after")
    def _an_authority_belongs_to_a_certificate(self) -> ExecutionTls:
        if (self.ca is None) != (self.certificate is None):
            raise ValueError("name certificate, key and ca, or none of the three")
        return self


class ExecutionConfig(Section):
    """The place where Spark computes the batches: this host, or the executors of a cluster."""

    master: str = Field(
        default="local[2]",
        pattern=rf"^({_LOCAL}|{_STANDALONE}|{_YARN}|{_KUBERNETES})$",
        description="Spark master that runs the queries: local, local[N], local[*] or local[N,F] "
        "on this host, spark://HOST:PORT[,HOST:PORT] for a standalone cluster, yarn, or "
        "k8s://URL with the URL of the API of Kubernetes.",
    )
    executors: ExecutorsConfig = ExecutorsConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    checkpoint: CheckpointPlace | None = Field(
        default=None,
        description="Directory that this node and all workers of the cluster mount at this path, "
        "or s3a://BUCKET/FOLDER. The executors keep the state there, each node's in a directory of "
        "its own. With s3a, snapshots name the objects of the state.",
    )
    listen: Address = Field(
        default="127.0.0.1:9895",
        description="Address (host:port) on which executors fetch the journal's events from this "
        "node. Spark's driver listens on its host too. Unused with a local master.",
    )
    advertise: Address | None = Field(
        default=None,
        description="Address (host:port) at which executors reach this node; by default the listen "
        "address.",
    )
    tls: ExecutionTls = ExecutionTls()
    insecure: bool = Field(
        default=False,
        description="Set to true to send events to executors of other hosts in plain text.",
    )
    secret: SecretStr = Field(
        default=SecretStr(""),
        description="Secret that both nodes and, on a standalone cluster, the masters and the "
        "workers share (spark.authenticate.secret), best as env:NAME or file:/path. Needed on a "
        "cluster.",
    )

    @property
    def on_cluster(self) -> bool:
        return not self.master.startswith("local")

    @property
    def on_yarn(self) -> bool:
        return self.master == _YARN

    @property
    def on_kubernetes(self) -> bool:
        return self.master.startswith("k8s://")

    @property
    def address(self) -> str:
        """The address at which executors reach this node."""
        return self.advertise or self.listen

    @property
    def _use_of_secret(self) -> str:
        if self.on_yarn or self.on_kubernetes:
            return (
                "choose one and give it to both nodes, since executors prove with a token derived "
                "from it that they may read events"
            )
        return "set it to spark.authenticate.secret of the masters and the workers"

    @model_validator(mode="after")
    def _a_cluster_is_reachable_and_authenticated(self) -> ExecutionConfig:
        if not self.on_cluster:
            return self
        if self.checkpoint is None:
            raise ValueError(
                "checkpoint is missing: the executors keep the queries' state there; name a "
                "directory that this node and all workers mount at the same path, or s3a://BUCKET/FOLDER"
            )
        if self.on_kubernetes and not self.kubernetes.image:
            raise ValueError(
                "kubernetes.image is missing; name the image of the executors' containers, such as "
                "that of this node"
            )
        if len(self.secret.get_secret_value()) < SECRET_CHARACTERS_MIN:
            raise ValueError(
                f"secret has fewer than {SECRET_CHARACTERS_MIN} characters; {self._use_of_secret}"
            )
        if ":" in "".join(split_address(one)[0] for one in (self.listen, self.address)):
            raise ValueError(
                "listen or advertise is an address of IPv6, on which Spark's driver was not tried; "
                "write an address of IPv4 or a host name"
            )
        require_on_purpose(self.listen, self.tls, self.insecure, "the executors' gRPC")
        if self.advertise is None and is_unspecified(split_address(self.listen)[0]):
            raise ValueError(
                f"listen is {self.listen}, every address of this host; set advertise to the "
                "address at which the executors reach this host"
            )
        return self
