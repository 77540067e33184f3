"""Splitting migration scripts into statements."""

from ratchet.core.resources import resource_dir
from ratchet.core.stores.warehouse import statements


def test_comments_are_dropped_and_semicolons_inside_a_line_stay() -> None:
    script = "-- about; this\nCREATE TABLE a (x String DEFAULT ';');\n\n-- b\nCREATE VIEW b AS\nSELECT 1;\n"
    assert statements(script) == ["CREATE TABLE a (x String DEFAULT ';')", "CREATE VIEW b AS\nSELECT 1"]


def test_every_statement_of_our_migrations_adds_something_and_can_run_again() -> None:
    scripts = sorted((resource_dir("deploy") / "clickhouse").glob("*.sql"))
    assert scripts
    for script in scripts:
        for statement in statements(script.read_text()):
            assert statement.startswith(("CREATE TABLE", "CREATE VIEW", "CREATE OR REPLACE VIEW", "ALTER TABLE"))
            additions = statement.count("CREATE TABLE ") + statement.count("CREATE VIEW ") + statement.count("ADD ")
            assert statement.count(" IF NOT EXISTS ") == additions
