"""Check that this host and the executors share ``execution.checkpoint`` on object storage."""

from __future__ import annotations

import secrets
from functools import cached_property

from ha_engine.config import Config
from ha_engine.doctor.finding import Finding, failed, ok
from ha_engine.doctor.spark_application import SparkApplication
from ha_engine.errors import ClusterCheckFailed
from ha_engine.query.object_checkpoints import Bucket

_REMEDY = (
    "let query.spark name hadoop-aws and the AWS SDK, the endpoint and the region, and give the "
    "environment of this process credentials that may list, read, write and delete objects"
)


class ObjectStorageCheck:
    """Writes objects into a folder of its own, which ``close`` deletes."""

    def __init__(self, config: Config, spark: SparkApplication) -> None:
        self._config, self._spark = config, spark
        self._folder = f".cluster-check-{secrets.token_hex(8)}"
        self._content = secrets.token_hex(16)

    @cached_property
    def _bucket(self) -> Bucket:
        url = self._config.checkpoint_url
        assert url is not None, "the config names an object storage"
        return Bucket(url, self._config.query.spark)

    def this_host(self) -> Finding:
        """Write an object, copy it, and read the copy. Raises ObjectStorageFailed."""
        written, copied = f"{self._folder}/written", f"{self._folder}/copied"
        self._bucket.put(written, self._content.encode())
        self._bucket.copy({written: copied})
        if self._bucket.read(copied) != self._content.encode():
            return failed(
                f"{self._bucket.where} answers other bytes than were written",
                "use a storage on which each request sees what was written before",
            )
        return ok(f"this host writes to {self._bucket.where}")

    def executors(self) -> Finding:
        """Let executors write and read objects, and read them on this host."""
        folder = f"{self._folder}/executors"
        try:
            self._spark.write(f"{self._bucket.where}/{folder}", self._content)
        except ClusterCheckFailed as error:
            return failed(str(error), _REMEDY)
        found = [self._bucket.read(key) for key in self._bucket.sizes(folder)]
        if f"{self._content}\n".encode() not in found:
            return failed(
                f"this host does not see what executors wrote to {self._bucket.where}",
                "let fs.s3a.endpoint under query.spark name the storage that this host reaches",
            )
        return ok(f"the executors and this host share {self._bucket.where}")

    def close(self) -> None:
        """Delete the objects. Raises ObjectStorageFailed."""
        self._bucket.delete(self._bucket.sizes(self._folder))
