"""The chart by Helm's own engine: the files of the tree are what it makes, and Kubernetes knows every object."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import jsonschema
import pytest
import yaml

from tools.kubernetes.manifests import REPOSITORY, VALUES, manifests, render
from tools.kubernetes.validation import faults, third_party_schema

pytestmark = pytest.mark.skipif(find_spec("helm_python") is None, reason="no Helm here: `make helm`")
ALL: Any = yaml.safe_load(VALUES.read_text())
CLUSTER = {"clickhouse": {"port": 8443, "cluster": "ratchet"}}
WITHOUT_KEDA = {"keda": False}


def _objects(values: Any) -> list[Any]:
    return list(yaml.safe_load_all(render(values)))


def _route(values: Any, name: str) -> Any:
    (route,) = (made for made in _objects(values) if (made["kind"], made["metadata"]["name"]) == ("HTTPRoute", name))
    return route


def test_files_of_the_tree_are_what_the_chart_makes() -> None:
    assert [path.name for path, text in manifests().items() if path.read_text() != text] == []


@pytest.mark.parametrize("values", [ALL, WITHOUT_KEDA], ids=["all", "without KEDA"])
def test_every_object_is_one_that_kubernetes_knows(values: Any) -> None:
    for made in _objects(values):
        assert faults(made) == [], (made["kind"], made["metadata"]["name"])


@pytest.mark.parametrize("kind", ["StatefulSet", "ScaledObject", "HTTPRoute", "RayJob"])
def test_an_object_with_an_unknown_member_is_refused(kind: str) -> None:
    made = next(made for made in _objects(ALL) if made["kind"] == kind)
    made["spec"]["unheard_of"] = 1
    assert faults(made)


def test_route_to_the_engines_follows_the_gateways_arm() -> None:
    for_canary, for_others = _route(ALL, "ratchet-engine")["spec"]["rules"]
    assert for_canary["matches"] == [{"headers": [{"name": "x-ratchet-arm", "value": "canary"}]}]
    assert [to["name"] for to in for_canary["backendRefs"]] == ["vllm-canary-0-engine-service"]
    assert "matches" not in for_others
    assert [to["name"] for to in for_others["backendRefs"]] == ["vllm-stable-0-engine-service"]


def test_gateway_asks_through_the_route_and_the_deployer_each_engine() -> None:
    urls = {
        made["metadata"]["name"]: variable["value"]
        for made in _objects(ALL)
        if made["kind"] == "StatefulSet"
        for variable in made["spec"]["template"]["spec"]["containers"][0]["env"]
        if variable["name"] == "RATCHET_ENGINE_URL"
    }
    pools = "http://vllm-stable-0-engine-service:80,http://vllm-canary-0-engine-service:80"
    assert urls == {"gateway": "http://engine.example.internal:80", "canary-deployer": pools}


@pytest.mark.parametrize(("stage", "percent"), [(0, 0), (1, 5), (2, 25), (3, 50), (4, 100)])
def test_share_of_calls_that_bypass_the_gateway_is_a_persons_stage(stage: int, percent: int) -> None:
    route = _route({**ALL, "bypass": {**ALL["bypass"], "stage": stage}}, "ratchet-bypass")
    (rule,) = route["spec"]["rules"]
    assert [to["weight"] for to in rule["backendRefs"]] == [100 - percent, percent]
    assert route["metadata"]["annotations"]["ratchet.dev/stage"].startswith(f"{stage} of 4 (5, 25, 50, 100 %)")


def test_shares_hold_for_pools_of_different_sizes() -> None:
    more = [{"name": f"vllm-stable-{number}-engine-service", "port": 80} for number in range(3)]
    route = _route({**ALL, "engine": {**ALL["engine"], "stable": more}}, "ratchet-bypass")
    weights = [to["weight"] for to in route["spec"]["rules"][0]["backendRefs"]]
    assert weights == [75, 75, 75, 75]


@pytest.mark.parametrize("values", [{"engine": {"route": ALL["engine"]["route"]}}, {"bypass": ALL["bypass"]}])
def test_route_without_a_pool_for_canaries_is_refused(values: Any) -> None:
    with pytest.raises(Exception, match="needs a pool for canaries"):
        render(values)


def test_tables_are_on_a_cluster_where_the_values_name_one() -> None:
    (data,) = (made["data"] for made in _objects(CLUSTER) if made["metadata"]["name"] == "ratchet" and "data" in made)
    assert data["RATCHET_CLICKHOUSE_CLUSTER"] == "ratchet"


def test_values_for_vllms_production_stack_follow_its_schema() -> None:
    values: Any = yaml.safe_load((REPOSITORY / "deploy" / "kubernetes" / "vllm-stack.yaml").read_text())
    schema = third_party_schema("vllm-stack.values.schema")
    assert [
        f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(schema).iter_errors(values)
    ] == []
    assert {f"vllm-{model['name']}-engine-service" for model in values["servingEngineSpec"]["modelSpec"]} == {
        *(engine["name"] for pool in ("stable", "canary") for engine in _all_engines()[pool])
    }


def _all_engines() -> Any:
    default: Any = yaml.safe_load((REPOSITORY / "deploy" / "kubernetes" / "chart" / "values.yaml").read_text())
    return {**default["engine"], **ALL["engine"]}
