"""Reading the config: files, environment, secrets, and the sentence of each refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from ha_engine.config.load import RESERVED, load, load_config, settings
from ha_engine.errors import ConfigError


def written(directory: Path, text: str, name: str = "engine.yaml") -> Path:
    file = directory / name
    file.write_text(text)
    return file


def problems(path: Path | None, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load_config(path, environ)
    return str(refused.value).splitlines()


def test_defaults_apply_without_a_file() -> None:
    config = load_config(None, {})
    assert config.lease.ttl == 5.0
    assert config.http.max_body == 16 << 20
    assert config.database.url.get_secret_value() == "embedded"


def test_durations_and_sizes_have_units(tmp_path: Path) -> None:
    config = load_config(
        written(tmp_path, "lease: {ttl: 1m, margin: 250ms}\nhttp: {max_body: 2 MiB}\n"), {}
    )
    assert (config.lease.ttl, config.lease.margin) == (60.0, 0.25)
    assert config.http.max_body == 2 << 20


def test_a_number_without_a_unit_is_refused_with_an_example(tmp_path: Path) -> None:
    [line] = problems(written(tmp_path, "lease: {ttl: 3}\n"))
    assert line.startswith("lease.ttl: 3 needs a number with a unit, such as 3s")


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    assert (
        "lease.tll: is not a known key; did you mean lease.ttl?"
        in problems(written(tmp_path, "lease: {tll: 3s}\n"))[0]
    )
    assert (
        "leese: is not a known key; did you mean lease?"
        in problems(written(tmp_path, "leese: {ttl: 3s}\n"))[0]
    )


def test_all_problems_are_reported_at_once_with_key_and_file(tmp_path: Path) -> None:
    file = written(tmp_path, "gruop: x\nlease: {ttl: soon}\nhttp: 5\nlog: {level: loud}\n")
    lines = problems(file, HA_ENGINE_OUTBOX_MAX_BATCHES="0")
    assert sorted(line.partition(":")[0] for line in lines) == [
        "gruop",
        "http",
        "lease.ttl",
        "log.level",
        "outbox.max_batches",
    ]
    assert all(str(file) in line or "HA_ENGINE_OUTBOX_MAX_BATCHES" in line for line in lines)


def test_a_key_written_twice_in_one_file_is_refused(tmp_path: Path) -> None:
    [line] = problems(written(tmp_path, "lease:\n  ttl: 3s\n  ttl: 4s\n"))
    assert "'ttl' is written twice, in line 3" in line


def test_a_directory_is_merged_and_a_key_in_two_files_is_refused_naming_both(
    tmp_path: Path,
) -> None:
    one = written(tmp_path, "group: flights\nlease: {ttl: 6s}\n", "10-base.yaml")
    two = written(tmp_path, "lease: {margin: 1s}\n", "20-more.yml")
    written(tmp_path, "not yaml: [", "notes.txt")
    config = load_config(tmp_path, {})
    assert (config.group, config.lease.ttl, config.lease.margin) == ("flights", 6.0, 1.0)
    two.write_text("lease: {ttl: 7s}\n")
    [line] = problems(tmp_path)
    assert line.startswith("lease.ttl: is set in")
    assert str(one) in line
    assert str(two) in line


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "lease: {ttl: 6s}\nquery: {spark: {spark.ui.enabled: false}}\n")
    environ = {
        "HA_ENGINE_LEASE_TTL": "7s",
        "HA_ENGINE_QUERY_SPARK": "{spark.ui.port: 4040}",
        "HA_ENGINE_HTTP_INSECURE": "true",
    }
    config = load_config(file, environ)
    assert config.lease.ttl == 7.0
    assert config.http.insecure is True
    assert config.query.spark == {"spark.ui.enabled": "false", "spark.ui.port": "4040"}


def test_the_origin_of_each_value_is_kept(tmp_path: Path) -> None:
    file = written(tmp_path, "lease: {ttl: 6s}\n")
    loaded = load(file, {"HA_ENGINE_GROUP": "x"})
    assert loaded.origins["lease", "ttl"] == str(file)
    assert loaded.origins["group",] == "HA_ENGINE_GROUP"
    assert ("lease", "margin") not in loaded.origins


def test_every_setting_has_a_variable_of_its_own() -> None:
    variables = [setting.variable for setting in settings()]
    assert len(set(variables)) == len(variables)
    assert not RESERVED & set(variables)


def test_an_unknown_variable_is_refused_and_a_reserved_one_allowed() -> None:
    [line] = problems(None, HA_ENGINE_LEASE_TLL="3s")
    assert line.endswith("did you mean HA_ENGINE_LEASE_TTL?")
    load_config(None, dict.fromkeys(RESERVED, "anything"))


@pytest.mark.parametrize("scheme", ["env", "file"])
def test_secrets_are_read_by_reference(tmp_path: Path, scheme: str) -> None:
    url = "postgresql://engine:hunter2@db/flights"
    (tmp_path / "url").write_text(url + "\n")
    reference = {"env": "env:DB_URL", "file": "file:url"}[scheme]
    file = written(tmp_path, f"database: {{url: '{reference}'}}\n")
    loaded = load(file, {"DB_URL": url})
    assert loaded.config.database.url.get_secret_value() == url
    assert loaded.references["database", "url"] == reference
    assert "hunter2" not in repr(loaded)


def test_error_names_the_reference_of_a_missing_secret() -> None:
    [line] = problems(None, HA_ENGINE_DATABASE_URL="env:DB_URL")
    assert "refers to the environment variable DB_URL, which is missing or empty" in line
    [line] = problems(None, HA_ENGINE_DATABASE_URL="file:/nowhere/url")
    assert "refers to the file /nowhere/url" in line


@pytest.mark.parametrize(
    "text",
    [
        "database: {url: 'mysql://engine:hunter2@db/flights'}",
        "database: {url: ['hunter2']}",
        "database:\n  url: 'postgresql://engine:hunter2@db\n  x: 'y",
        "database: {url: 'postgresql://engine:hunter2@db/f', scheme: x}",
    ],
)
def test_no_message_shows_a_secret(tmp_path: Path, text: str) -> None:
    lines = problems(written(tmp_path, text))
    assert lines
    assert not any("hunter2" in line for line in lines)


@pytest.mark.parametrize("text", ["group: 2026-99-99", "group: !!int abc", "group: " + "[" * 5_000])
def test_error_names_a_file_that_is_no_valid_yaml(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_config(written(tmp_path, text), {})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lease: {ttl: 3s, renew_interval: 2s}", "one slow answer of the database would suspend"),
        ("lease: {margin: 0s}", "must be longer than 0s"),
        ("http: {listen: '0.0.0.0:8080'}", "write 'insecure: true'"),
        ("http: {listen: 'somehost:8080'}", "write 'insecure: true'"),
        ("ingest: {listen: '0.0.0.0:9894'}", "gRPC does not encrypt"),
        ("http: {listen: '0.0.0.0:80', insecure: true}", "set advertise to the address at which"),
        ("ingest: {listen: '[::]:80', insecure: true}", "set advertise to the address at which"),
        (
            "http: {keep_alive: 500ms}",
            "http.keep_alive: input should be greater than or equal to 1",
        ),
        ("publish: {timeout: 0s}", "publish.timeout: input should be greater than 0"),
        (
            "query: {start_timeout: 0s}",
            "query.start_timeout: input should be greater than or equal to 1",
        ),
        ("query: {heap: 511MiB}", "query.heap: input should be greater than or equal to"),
        ("http: {listen: '8080'}", "write host:port"),
        ("http: {listen: '::1:8080'}", "put an IPv6 host in brackets"),
        ("http: {max_body: 0B}", "http.max_body: input should be greater than or equal to 1024"),
        ("lease: {ttl: 10000d}", "lease.ttl: input should be less than or equal to 3600"),
        ("receive: {max_producers: 1000000000000}", "receive.max_producers: input should be less"),
        ("http: {advertise: 'http://me:secret@a:80'}", "http.advertise: has characters or a form"),
        ("node: {data_dir: /}", "data_dir is /; give the node a directory of its own"),
        ("database: {schema: pg_catalog}", "schema pg_catalog belongs to PostgreSQL"),
        ("http: {max_body: 65MiB}", "raise receive.max_pending or lower http.max_body"),
        ("ingest: {max_body: 65MiB}", "raise receive.max_pending or lower ingest.max_body"),
        ("receive: {max_record_rows: 300000}", "lower receive.max_record_rows"),
        ("outbox: {max_bytes: 1KiB}", "outbox.max_bytes"),
        ("query: {spark: {ui.enabled: false}}", "starts with 'spark.'"),
        ("query: {spark: {spark.master: 'local[2]'}}", "set execution.master instead"),
        (f"node: {{runtime_dir: /tmp/{'x' * 100}}}", "choose a shorter directory"),
        ("node: {id: 'a b'}", "node.id: has characters or a form that is not allowed"),
        ("- a\n- b", "must contain keys and values"),
        ("event_sync: {peers: {node-b: 'b:9893'}}", "any host could pose as a peer; give"),
        (
            "event_sync: {peers: {node-a: 'b:9893'}, insecure: true}",
            "event_sync.peers contains this node (node-a)",
        ),
        ("event_sync: {peers: {node-b: b}, insecure: true}", "write host:port"),
        (
            "event_sync: {peers: {node-b: 'b:1', node-c: 'c:1'}, insecure: true, backup: d}",
            "event_sync.backup names d, which is neither this node (node-a)",
        ),
        (
            "event_sync: {peers: {node-b: 'b:1'}, insecure: true, backup: node-b}",
            "a backup is a third node",
        ),
        ("event_sync: {tls: {certificate: a.pem}}", "key and ca missing"),
        (
            "event_sync: {insecure: true, tls: {certificate: c, key: k, ca: a}}",
            "insecure and tls exclude each other",
        ),
        ("event_sync: {heartbeat_interval: 1s}", "three heartbeats must fit into sync_timeout"),
        ("event_sync: {heartbeat_interval: 0s}", "three heartbeats must fit into sync_timeout"),
    ],
)
def test_invalid_relations_and_formats_are_refused_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    [line] = problems(written(tmp_path, text))
    assert reason in line


@pytest.mark.parametrize("master", ["local", "local[1]", "local[16]", "local[*]", "local[4, 2]"])
def test_local_spark_master_is_accepted(tmp_path: Path, master: str) -> None:
    config = load_config(written(tmp_path, f"execution: {{master: '{master}'}}"), {})
    assert config.execution.master == master
    assert not config.execution.on_cluster


@pytest.mark.parametrize(
    "master", ["", "yarn-client", "yarn://m", "local-cluster[2,1,1024]", "local[0]", "local[]"]
)
def test_unknown_spark_master_is_refused(tmp_path: Path, master: str) -> None:
    [line] = problems(written(tmp_path, f"execution: {{master: '{master}'}}"))
    assert line.startswith(
        "execution.master: has characters or a form that is not allowed; the key is: "
    )
    assert "spark://HOST:PORT" in line


CLUSTER = "master: 'spark://m1:7077,m2:7077', checkpoint: /mnt/ha, secret: a-secret-of-the-cluster"

YARN = CLUSTER.replace("'spark://m1:7077,m2:7077'", "yarn")
KUBERNETES = CLUSTER.replace("spark://m1:7077,m2:7077", "k8s://https://api:6443")
ON_STORAGE = CLUSTER.replace("/mnt/ha", "'s3a://states/ha/'")


def test_yarn_is_a_cluster(tmp_path: Path) -> None:
    execution = load_config(written(tmp_path, f"execution: {{{YARN}}}"), {}).execution
    assert execution.on_yarn
    assert execution.on_cluster
    standalone = load_config(written(tmp_path, f"execution: {{{CLUSTER}}}"), {}).execution
    assert not standalone.on_yarn


def test_kubernetes_is_a_cluster_whose_executors_have_an_image(tmp_path: Path) -> None:
    text = f"execution: {{{KUBERNETES}, kubernetes: {{image: 'engine:1'}}}}"
    execution = load_config(written(tmp_path, text), {}).execution
    assert execution.on_kubernetes
    assert execution.on_cluster
    [line] = problems(written(tmp_path, f"execution: {{{KUBERNETES}}}"))
    assert "kubernetes.image is missing" in line


def test_checkpoints_of_a_group_have_their_own_folder_on_object_storage(tmp_path: Path) -> None:
    text = f"group: g\nexecution: {{{ON_STORAGE}}}"
    assert load_config(written(tmp_path, text), {}).checkpoint_url == "s3a://states/ha/g"
    with_directory = f"group: g\nexecution: {{{CLUSTER}}}"
    assert load_config(written(tmp_path, with_directory), {}).checkpoint_url is None


def test_each_node_keeps_its_checkpoints_in_its_own_place_on_a_cluster(tmp_path: Path) -> None:
    text = f"group: g\nnode: {{id: node-b}}\nexecution: {{{CLUSTER}}}"
    config = load_config(written(tmp_path, text), {})
    assert config.execution.on_cluster
    assert config.checkpoint_dir == Path("/mnt/ha/g/node-b")
    assert "a-secret" not in str(config)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "execution: {master: 'spark://m:7077', secret: xxxxxxxxxxxxxxxx}",
            "checkpoint is missing",
        ),
        (
            "execution: {master: 'spark://m:7077', checkpoint: /mnt}",
            "fewer than 16 characters; set it to spark.authenticate.secret of the masters",
        ),
        (
            "execution: {master: yarn, checkpoint: /mnt}",
            "fewer than 16 characters; choose one and give it to both nodes",
        ),
        ("execution: {master: yarn, secret: xxxxxxxxxxxxxxxx}", "checkpoint is missing"),
        (
            "execution: {master: 'k8s://api', checkpoint: /mnt, kubernetes: {image: i}}",
            "fewer than 16 characters; choose one and give it to both nodes",
        ),
        (f"execution: {{{CLUSTER}, listen: 'h:9895'}}", "does not encrypt without"),
        (
            f"execution: {{{CLUSTER}, listen: '0.0.0.0:9895', insecure: true}}",
            "set advertise to the address at which the executors reach this host",
        ),
        (f"execution: {{{CLUSTER}, listen: '[::1]:9895'}}", "IPv4 or a host name"),
        (f"execution: {{{CLUSTER}, tls: {{certificate: c, key: k}}}}", "certificate, key and ca"),
        (
            f"execution: {{{CLUSTER}}}\nquery: {{checkpoint_dir: /tmp/c}}",
            "remove query.checkpoint_dir",
        ),
        (
            "execution: {master: 'spark://m:7077', checkpoint: 'hdfs://n:8020/ha'}",
            "neither a directory nor s3a://BUCKET/FOLDER",
        ),
        (
            f"execution: {{{ON_STORAGE}}}\nquery: {{spark: {{spark.hadoop.fs.s3a.secret.key: x}}}}",
            "put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into the environment",
        ),
        (
            f"execution: {{{ON_STORAGE}}}\n"
            "query: {spark: {spark.hadoop.fs.s3a.bucket.events.access.key: x}}",
            "can be seen by other users of this host",
        ),
        ("query: {master: 'local[2]'}", "is now execution.master"),
    ],
)
def test_incomplete_settings_of_a_cluster_are_refused_with_the_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    [line] = problems(written(tmp_path, text))
    assert reason in line


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.1.2.3:80", "[::1]:8080", "localhost:80"])
def test_loopback_addresses_need_no_insecure_setting(tmp_path: Path, listen: str) -> None:
    config = load_config(written(tmp_path, f"http: {{listen: '{listen}'}}"), {})
    assert config.http.listen == listen


def test_other_addresses_need_the_insecure_setting(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "http: {listen: '10.0.0.1:80', insecure: true}"), {})
    assert config.http.listen == "10.0.0.1:80"


@pytest.mark.parametrize(
    "trust", ["insecure: true", "tls: {certificate: a.pem, key: a.key, ca: ca.pem}"]
)
def test_peers_need_certificates_or_the_insecure_setting(tmp_path: Path, trust: str) -> None:
    config = load_config(
        written(tmp_path, f"event_sync: {{peers: {{node-b: 'b:9893'}}, {trust}}}"), {}
    )
    assert config.event_sync.peers == {"node-b": "b:9893"}
    assert config.event_sync.tls.ca in (None, tmp_path / "ca.pem")


def test_relative_paths_start_at_the_directory_of_the_config_file(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "node: {data_dir: ../state}\n"), {})
    assert config.node.data_dir == tmp_path.parent / "state"
    assert config.application == tmp_path / "application.yaml"


def test_missing_file_and_empty_directory_are_reported(tmp_path: Path) -> None:
    assert "does not exist" in problems(tmp_path / "none.yaml")[0]
    assert "has no file that ends in .yaml" in problems(tmp_path)[0]


def test_socket_is_in_a_short_directory_unique_to_the_data_directory(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": "/tmp"}
    a = load_config(written(tmp_path, "node: {data_dir: a}"), environ).socket_path
    b = load_config(written(tmp_path, "node: {data_dir: b}"), environ).socket_path
    assert a != b
    assert a.parent.parent == Path("/tmp")
    assert len(str(a)) <= 100
    long = load_config(None, {"XDG_RUNTIME_DIR": str(tmp_path / ("x" * 120))}).socket_path
    assert len(str(long)) <= 100
