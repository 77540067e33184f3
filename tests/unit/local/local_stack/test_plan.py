"""Which members are started, on which ports, with which environment."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.core.errors import ConfigError
from ratchet.core.service.settings import SharedSettings
from ratchet.core.service.settings_file import SettingsFile
from ratchet.local.local_stack.catalog import (
    ANALYST,
    ENGINE,
    MLFLOW,
    NAMES,
    NOTIFIER,
    PROMPT_WORKER,
    SERVERS,
    SERVICES,
    SPAN_EXPORTER,
    TRACKER,
    TRAINER,
    VLLM,
    WORKFLOWS,
    default_ports,
    owner_of,
)
from ratchet.local.local_stack.member import SILENT_LOOKS
from ratchet.local.local_stack.plan import (
    choose_ports,
    chosen,
    make_plan,
    service_program,
    shared_of,
    shared_port_programs,
    stack_environment,
)
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.program import STOP_S
from ratchet.local.local_stack.settings import StackSettings, ports_of_environment, ports_of_options
from ratchet.local.local_stack.state import StackSecrets, keep_ports, read_ports
from ratchet.local.local_stack.vllm import VllmSettings, installed_vllm


def never_taken(port: int) -> bool:
    return False


def test_no_two_default_ports_are_the_same() -> None:
    assert [port for port, count in Counter(default_ports().values()).items() if count > 1] == []


def test_every_port_belongs_to_a_member() -> None:
    assert {owner_of(name) for name in default_ports()} == {
        *NAMES,
        MLFLOW,
        TRACKER.name,
        NOTIFIER.name,
        SPAN_EXPORTER.name,
        WORKFLOWS.name,
        ANALYST.name,
    }


def test_services_need_only_services_that_stand_before_them() -> None:
    for place, spec in enumerate(SERVICES):
        assert set(spec.needs) <= {before.name for before in SERVICES[:place]}


def test_a_service_brings_all_servers_and_a_server_comes_alone() -> None:
    servers, services = chosen(("gateway",))
    assert (servers, [spec.name for spec in services]) == (list(SERVERS), ["gateway"])
    assert chosen(("s3",)) == (["s3"], [])
    assert len(chosen(())[1]) == len(SERVICES)


def test_mlflow_and_the_tracker_run_where_a_program_is_named(tmp_path: Path) -> None:
    settings = StackSettings(tmp_path, free_ports=True, only=("trajectory_collector",))
    secrets = StackSecrets(s3_secret_key="s", clickhouse_password="p", service_key="k" * 16)
    assert MLFLOW not in {program.name for program in make_plan(settings, secrets).programs}
    with pytest.raises(ConfigError, match=r"there is no MLflow at .*: `make mlflow` makes"):
        make_plan(replace(settings, mlflow=tmp_path / "mlflow"), secrets)
    (tmp_path / "mlflow").touch()
    plan = make_plan(replace(settings, mlflow=tmp_path / "mlflow"), secrets)
    programs = {program.name: program for program in plan.programs}
    assert [*programs] == [*SERVERS, MLFLOW, "trajectory_collector", TRACKER.name]
    assert plan.env["RATCHET_TRACKER_MLFLOW_URL"] == programs[MLFLOW].url
    assert (plan.needs[MLFLOW], plan.needs[TRACKER.name]) == ((), (*SERVERS, MLFLOW))


def test_notifier_runs_where_receivers_are_set(tmp_path: Path) -> None:
    secrets = StackSecrets(s3_secret_key="s", clickhouse_password="p", service_key="k" * 16)
    settings = StackSettings(tmp_path, free_ports=True)
    without = make_plan(replace(settings, env={"RATCHET_NOTIFIER_RECEIVERS": "[]"}), secrets)
    assert NOTIFIER.name not in {program.name for program in without.programs}
    receivers = '[{"name": "team", "url": "json://127.0.0.1"}]'
    plan = make_plan(replace(settings, env={"RATCHET_NOTIFIER_RECEIVERS": receivers}), secrets)
    (notifier,) = (program for program in plan.programs if program.name == NOTIFIER.name)
    assert {*json.loads(notifier.env["RATCHET_NOTIFIER_HEALTH_URLS"])} == {spec.name for spec in SERVICES}


def test_workflows_run_where_they_were_asked_for(tmp_path: Path) -> None:
    secrets = StackSecrets(s3_secret_key="s", clickhouse_password="p", service_key="k" * 16)
    settings = StackSettings(tmp_path, free_ports=True)
    without = make_plan(settings, secrets)
    assert WORKFLOWS.name not in {program.name for program in without.programs}
    assert WORKFLOWS.url_variable not in without.env
    plan = make_plan(replace(settings, workflows=True), secrets)
    (program,) = (program for program in plan.programs if program.name == WORKFLOWS.name)
    assert plan.env[WORKFLOWS.url_variable] == program.url
    assert plan.needs[WORKFLOWS.name] == (*SERVERS, "gateway")


def test_the_analyst_runs_where_it_was_asked_for(tmp_path: Path) -> None:
    secrets = StackSecrets(s3_secret_key="s", clickhouse_password="p", service_key="k" * 16)
    settings = StackSettings(tmp_path, free_ports=True)
    assert ANALYST.name not in {program.name for program in make_plan(settings, secrets).programs}
    plan = make_plan(replace(settings, analyst=True), secrets)
    (program,) = (program for program in plan.programs if program.name == ANALYST.name)
    assert plan.env[ANALYST.url_variable] == program.url


def test_a_user_has_the_same_key_in_workflows_as_at_gateways(tmp_path: Path) -> None:
    secrets = StackSecrets(s3_secret_key="s", clickhouse_password="p", service_key="k" * 16)
    filed = SettingsFile(tmp_path / "ratchet.toml", {"gateway": {"user_key": "of users"}})
    settings = StackSettings(tmp_path, free_ports=True, workflows=True)
    for named in (replace(settings, file=filed), replace(settings, env={"RATCHET_GATEWAY_USER_KEY": "of users"})):
        keys = {
            program.name: program.env.get("RATCHET_GATEWAY_USER_KEY") for program in make_plan(named, secrets).programs
        }
        assert keys[WORKFLOWS.name] == "of users"


def test_span_exporter_runs_and_gateways_know_where_an_endpoint_is_set(tmp_path: Path) -> None:
    secrets = StackSecrets(s3_secret_key="s", clickhouse_password="p", service_key="k" * 16)
    settings = StackSettings(tmp_path, free_ports=True)
    without = make_plan(replace(settings, env={"RATCHET_SPAN_EXPORTER_ENDPOINT": "none"}), secrets)
    assert SPAN_EXPORTER.name not in {program.name for program in without.programs}
    url = "http://127.0.0.1:6006"
    filed = SettingsFile(tmp_path / "ratchet.toml", {"span_exporter": {"endpoint": url}})
    for named in (replace(settings, env={"RATCHET_SPAN_EXPORTER_ENDPOINT": url}), replace(settings, file=filed)):
        programs = {program.name: program for program in make_plan(named, secrets).programs}
        assert {
            name for name, program in programs.items() if program.env.get("RATCHET_SPAN_EXPORTER_ENDPOINT") == url
        } >= {SPAN_EXPORTER.name, "gateway"}


def test_vllm_answers_in_the_place_and_on_the_port_of_the_local_engine(tmp_path: Path) -> None:
    vllm = VllmSettings(tmp_path / "bin" / "python", tmp_path / "model", dtype="bfloat16", max_rank=8, context=512)
    secrets = StackSecrets(s3_secret_key="hidden", clickhouse_password="p", service_key="k" * 16)
    plan = make_plan(StackSettings(tmp_path, ports={"engine": 9876}, free_ports=True, vllm=vllm), secrets)
    programs = {program.name: program for program in plan.programs}
    assert ENGINE not in programs
    assert VLLM in plan.needs["gateway"]
    assert VLLM in plan.needs["canary_deployer"]
    assert plan.needs[VLLM] == SERVERS  # its plugin reads the object store
    assert plan.env["RATCHET_ENGINE_URL"] == programs[VLLM].url == "http://127.0.0.1:9876"
    assert (plan.env["RATCHET_ENGINE_KIND"], plan.env["RATCHET_ENGINE_LOGPROBS_MODE"]) == ("vllm", "processed_logprobs")
    command = programs[VLLM].command
    assert command[:5] == (str(vllm.python), "-m", "ratchet.extras.vllm_plugin", "serve", str(vllm.base))
    options = dict(zip(command[5:-1:2], command[6::2], strict=False))
    assert (options["--dtype"], options["--max-lora-rank"], options["--max-model-len"]) == ("bfloat16", "8", "512")
    env = programs[VLLM].env
    assert env["PATH"].startswith(f"{tmp_path / 'bin'}:")  # the plugin's command starts `vllm` from there
    assert env["RATCHET_S3_SECRET_KEY"] == "hidden"
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


def test_without_vllm_services_take_the_local_engine_for_what_it_is(tmp_path: Path) -> None:
    secrets = StackSecrets(s3_secret_key="s", clickhouse_password="p", service_key="k" * 16)
    plan = make_plan(StackSettings(tmp_path, free_ports=True), secrets)
    assert ENGINE in plan.needs["gateway"]
    assert "RATCHET_ENGINE_KIND" not in plan.env


def test_vllm_is_the_one_beside_this_environment_alone(tmp_path: Path) -> None:
    environment, binaries = tmp_path / ".venv", tmp_path / ".vllm" / "bin"
    assert installed_vllm(environment) is None
    binaries.mkdir(parents=True)
    assert installed_vllm(environment) is None  # an installation that was broken off
    (binaries / "vllm").touch()
    assert installed_vllm(environment) == binaries / "python"


def test_options_win_over_the_environment_and_both_over_the_defaults() -> None:
    ports = ports_of_environment({"RATCHET_PORT_GATEWAY": "9000", "RATCHET_PORT_NATS": "9001", "HOME": "/"})
    ports |= ports_of_options(["gateway=9100"])
    chosen_ports = choose_ports(StackSettings(ports=ports), ["gateway", "nats", "s3"], never_taken)
    assert (chosen_ports["gateway"], chosen_ports["nats"], chosen_ports["s3"]) == (9100, 9001, 8333)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["gateway"], "NAME=PORT"), (["gateway=x"], "not a port number"), (["nope=1"], "'nope'"), (["s3=70000"], "65535")],
)
def test_a_wrong_port_option_is_one_clear_line(options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        StackSettings(ports=ports_of_options(options))
    assert "\n" not in str(caught.value)


def test_an_unknown_service_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"'engin'.*engine_local"):
        StackSettings(only=("engin",))


def test_a_taken_port_names_the_port_and_the_service() -> None:
    with pytest.raises(ConfigError, match="port 8081 for rl_coordinator is taken"):
        choose_ports(StackSettings(), ["nats", "coordinator"], lambda port: port == 8081)


def test_many_taken_ports_are_the_first_few_and_a_count() -> None:
    names = [*default_ports()]
    with pytest.raises(ConfigError) as refused:
        choose_ports(StackSettings(), names, lambda _: True)
    assert len(str(refused.value)) < 300
    assert f"; {len(names) - 3} other ports likewise; choose with --port NAME=PORT" in str(refused.value)


def test_a_port_given_twice_names_both() -> None:
    with pytest.raises(ConfigError, match="port 8080 is given to both gateway and nats"):
        choose_ports(StackSettings(ports={"nats": 8080}), ["gateway", "nats"], never_taken)


def test_free_ports_stay_from_start_to_start_unless_one_is_taken(tmp_path: Path) -> None:
    settings = StackSettings(tmp_path, free_ports=True)
    names = ["nats", "s3", "gateway"]
    first = choose_ports(settings, names, never_taken)
    keep_ports(tmp_path, {name: first[name] for name in names})
    again = choose_ports(settings, [*names, "coordinator"], never_taken)
    assert [again[name] for name in names] == [first[name] for name in names]
    assert again["coordinator"] not in first.values()
    moved = choose_ports(settings, names, lambda port: port == first["s3"])
    assert (moved["nats"], moved["gateway"]) == (first["nats"], first["gateway"])
    assert moved["s3"] != first["s3"]
    named = choose_ports(replace(settings, ports={"nats": first["gateway"]}), names, never_taken)
    assert named["nats"] == first["gateway"] != named["gateway"]


def test_a_port_of_a_member_that_is_left_out_is_drawn_for_no_other(tmp_path: Path) -> None:
    settings, names = StackSettings(tmp_path, free_ports=True), ["nats", "s3"]
    (next_port,) = free_ports(1)
    keep_ports(tmp_path, {"gateway": next_port + 1, "deployer": next_port + 2})
    drawn = choose_ports(settings, names, never_taken)
    assert {drawn[name] for name in names}.isdisjoint({next_port + 1, next_port + 2})


def test_ports_stay_without_the_option_that_drew_them(tmp_path: Path) -> None:
    names = ["nats", "gateway"]
    keep_ports(tmp_path, {"nats": 20000, "gateway": 20001})
    later = choose_ports(StackSettings(tmp_path), [*names, "s3"], never_taken)
    assert (later["nats"], later["gateway"], later["s3"]) == (20000, 20001, default_ports()["s3"])
    named = choose_ports(StackSettings(tmp_path, ports={"nats": 20001}), names, never_taken)
    assert (named["nats"], named["gateway"]) == (20001, default_ports()["gateway"])
    with pytest.raises(ConfigError, match="port 20001 for gateway is taken"):
        choose_ports(StackSettings(tmp_path), names, lambda port: port == 20001)


def test_trainer_and_engine_wait_until_they_are_needed_or_named(tmp_path: Path) -> None:
    secrets = StackSecrets()
    assert make_plan(StackSettings(tmp_path, free_ports=True), secrets).when_needed == {TRAINER, ENGINE, PROMPT_WORKER}
    named = StackSettings(tmp_path, free_ports=True, only=("gateway", ENGINE))
    assert make_plan(named, secrets).when_needed == set()


def test_engine_starts_with_the_stack_where_reward_models_are_named(tmp_path: Path) -> None:
    settings = StackSettings(tmp_path, free_ports=True)
    filed = SettingsFile(tmp_path / "ratchet.toml", {"reward_computer": {"models": {"default": "s3://models/one"}}})
    given = {"RATCHET_REWARD_MODELS": '{"default": "s3://models/one"}'}
    for naming in (replace(settings, env=given), replace(settings, file=filed)):
        assert make_plan(naming, StackSecrets()).when_needed == {TRAINER, PROMPT_WORKER}
    assert ENGINE in make_plan(replace(settings, env={"RATCHET_REWARD_MODELS": "{}"}), StackSecrets()).when_needed


def test_prompt_worker_is_a_worker_of_its_pool_whatever_trainers_settings(tmp_path: Path) -> None:
    settings = StackSettings(
        tmp_path, free_ports=True, env={"RATCHET_TRAINER_POOL": "gpu", "RATCHET_TRAINER_SLOTS": "2"}
    )
    programs = {program.name: program for program in make_plan(settings, StackSecrets()).programs}
    trainer, worker = programs[TRAINER], programs[PROMPT_WORKER]
    assert worker.command == trainer.command
    names = ("RATCHET_TRAINER_POOL", "RATCHET_TRAINER_WORKER", "RATCHET_TRAINER_SLOTS")
    assert [worker.env.get(name) for name in names] == ["prompts", "prompts", "2"]
    assert [trainer.env.get(name) for name in names] == ["gpu", None, "2"]
    assert worker.stop_s < trainer.stop_s
    assert (worker.directories, worker.health_port != trainer.health_port) == (
        (tmp_path / "data" / PROMPT_WORKER,),
        True,
    )


def test_a_port_that_is_kept_for_two_names_goes_to_the_first(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text('{"nats": 20000, "gateway": 20000}')
    drawn = choose_ports(StackSettings(tmp_path, free_ports=True), ["nats", "gateway"], never_taken)
    assert drawn["nats"] == 20000 != drawn["gateway"]


def test_a_port_that_another_name_has_now_is_kept_for_that_one_alone(tmp_path: Path) -> None:
    keep_ports(tmp_path, {"gateway": 20000, "s3": 20001})
    keep_ports(tmp_path, {"nats": 20000})
    assert read_ports(tmp_path) == {"s3": 20001, "nats": 20000}


def test_ports_that_cannot_be_read_are_drawn_anew(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text("[")
    assert read_ports(tmp_path) == {}


def test_a_port_has_the_name_of_its_service_too() -> None:
    ports = ports_of_options(["rl_coordinator=9000", "Engine_Local_health=9001", "nats_monitor=9002"])
    assert ports == {"coordinator": 9000, "engine_health": 9001, "nats_monitor": 9002}
    assert ports_of_environment({"RATCHET_PORT_CANARY_DEPLOYER": "9003"}) == {"deployer": 9003}


def test_engine_of_the_stack_asks_for_a_key_that_its_clients_have(tmp_path: Path) -> None:
    secrets = StackSecrets()
    plan = make_plan(StackSettings(tmp_path, free_ports=True), secrets)
    keys = {program.name: program.env.get("RATCHET_ENGINE_API_KEY") for program in plan.programs}
    assert {keys[name] for name in (ENGINE, "gateway", "canary_deployer")} == {secrets.engine_key}


def test_key_of_an_engine_that_the_environment_names_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_ENGINE_API_KEY", "theirs")
    plan = make_plan(StackSettings(tmp_path, free_ports=True), StackSecrets())
    assert "RATCHET_ENGINE_API_KEY" not in plan.env


def test_services_find_everything_through_the_environment(tmp_path: Path) -> None:
    env = stack_environment(
        default_ports(), SharedSettings(s3_access_key="key", s3_secret_key="secret"), StackSecrets()
    )
    shared = shared_of(env)
    assert (shared.nats_url, shared.s3_endpoint) == ("nats://127.0.0.1:4222", "http://127.0.0.1:8333")
    assert (shared.s3_access_key, shared.s3_secret_key) == ("key", "secret")
    spec = next(spec for spec in SERVICES if spec.short == "coordinator")
    program = service_program(spec, default_ports(), env, tmp_path)
    assert program.env["RATCHET_COORDINATOR_PORT"] == "8081"
    assert program.env["RATCHET_HEALTH_PORT"] == "9103"
    assert program.env["RATCHET_ENGINE_URL"] == "http://127.0.0.1:8082"
    assert program.env["RATCHET_DATA_DIR"] == str(tmp_path / "rl_coordinator")
    assert program.ready_url == "http://127.0.0.1:9103/readyz"
    assert "OMP_NUM_THREADS" not in program.env


@pytest.mark.parametrize(("env", "drain_s"), [({}, 120), ({"RATCHET_GATEWAY_DRAIN_S": "300"}, 300)])
def test_the_gateway_may_drain_before_it_is_killed(tmp_path: Path, env: dict[str, str], drain_s: float) -> None:
    spec = next(spec for spec in SERVICES if spec.short == "gateway")
    program = service_program(spec, default_ports(), env, tmp_path)
    assert (program.env["RATCHET_GATEWAY_DRAIN_S"], program.stop_s) == (str(drain_s), STOP_S + drain_s)


def test_a_drain_that_is_no_number_is_one_clear_line(tmp_path: Path) -> None:
    spec = next(spec for spec in SERVICES if spec.short == "gateway")
    with pytest.raises(ConfigError, match="RATCHET_GATEWAY_DRAIN_S: 'long' is not a number"):
        service_program(spec, default_ports(), {"RATCHET_GATEWAY_DRAIN_S": "long"}, tmp_path)


@pytest.mark.parametrize("text", ["inf", "nan", "-1", "1e999"])
def test_a_drain_other_than_a_time_is_refused(tmp_path: Path, text: str) -> None:
    spec = next(spec for spec in SERVICES if spec.short == "gateway")
    with pytest.raises(
        ConfigError, match=f"^wrong setting RATCHET_GATEWAY_DRAIN_S: '{text}' is not a number of seconds"
    ):
        service_program(spec, default_ports(), {"RATCHET_GATEWAY_DRAIN_S": text}, tmp_path)


def test_a_stacks_environment_may_hold_json() -> None:
    shared = shared_of({"RATCHET_STREAM_MAX_BYTES": '{"RL_TURNS": 5}', "RATCHET_ALLOWED_HOSTS": '["a.example"]'})
    assert (shared.stream_max_bytes, shared.allowed_hosts) == ({"RL_TURNS": 5}, ["a.example"])
    with pytest.raises(ConfigError, match=r"^wrong setting RATCHET_ALLOWED_HOSTS: it is not JSON"):
        shared_of({"RATCHET_ALLOWED_HOSTS": "a.example"})


def test_torch_gets_one_thread(tmp_path: Path) -> None:
    spec = next(spec for spec in SERVICES if spec.short == "engine")
    assert service_program(spec, default_ports(), {}, tmp_path).env["OMP_NUM_THREADS"] == "1"


def test_gateway_that_hangs_is_noticed_within_15_s(tmp_path: Path) -> None:
    spec, settings = next(spec for spec in SERVICES if spec.short == "gateway"), StackSettings()
    programs = shared_port_programs(spec, 2, default_ports(2), {}, tmp_path)
    assert [program.name for program in programs] == ["gateway", "gateway-2"]
    assert len({program.health_port for program in programs}) == 2
    silent_s = programs[0].silent_s
    assert silent_s is not None
    answer_s = silent_s / (SILENT_LOOKS + 1)
    first_s, later_s = settings.look_s + 2 * answer_s, (SILENT_LOOKS - 1) * (settings.look_s + answer_s)
    assert silent_s <= first_s + later_s < 15
