"""The statements of the schema."""

from pathlib import Path

from ratchet.core.stores.schema import replicated, schema_statements, statements, upgrade_statements


def test_statements_drop_comments_and_keep_semicolons_inside_a_line() -> None:
    script = "-- about; this\nCREATE TABLE a (x String DEFAULT ';');\n\n-- b\nCREATE VIEW b AS\nSELECT 1;\n"
    assert statements(script) == ["CREATE TABLE a (x String DEFAULT ';')", "CREATE VIEW b AS\nSELECT 1"]


def test_schema_statements_can_run_again() -> None:
    made = schema_statements()
    assert {"trajectories", "latest_rewards"} <= made.keys()
    for name, statement in made.items():
        assert statement.startswith((f"CREATE TABLE IF NOT EXISTS {name}\n", f"CREATE VIEW IF NOT EXISTS {name} AS\n"))


def test_replicated_tables_are_on_the_cluster_with_their_deduplication() -> None:
    made = replicated(schema_statements()["trajectories"], "ratchet")
    assert made.startswith("CREATE TABLE IF NOT EXISTS trajectories ON CLUSTER 'ratchet'\n(")
    assert "\nENGINE = ReplicatedReplacingMergeTree(ingested_at)\n" in made
    assert "SETTINGS replicated_deduplication_window = 1000," in made


def test_every_statement_of_a_cluster_is_replicated() -> None:
    for statement in schema_statements().values():
        made = replicated(statement, "ratchet")
        assert made.count(" ON CLUSTER 'ratchet'") == 1
        assert ("ENGINE = ReplicatedReplacingMergeTree" in made) == statement.startswith("CREATE TABLE")
        assert "non_replicated" not in made


def test_steps_of_an_upgrade_follow_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number, digest in ((10, "later"), (9, "earlier")):
        (tmp_path / f"{number}-{digest}.sql").write_text(f"SELECT {number};\n")
    assert upgrade_statements(["earlier"], tmp_path) == ["SELECT 9", "SELECT 10"]
    assert upgrade_statements(["later"], tmp_path) == ["SELECT 10"]
    assert upgrade_statements(["other"], tmp_path) is None
