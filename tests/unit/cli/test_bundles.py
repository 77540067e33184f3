"""`ratchet bundles`: from a command line or a folder to what the deployer is asked, and its answers in words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.contract.bundle import (
    NO_BUNDLE,
    Bundle,
    BundleModel,
    Example,
    Instructions,
    SamplingValues,
    ToolTexts,
)
from ratchet.core.contract.http.rollouts import BundleIn, BundleOut, RemoveIn, RolePoliciesOut, RolloutOut
from ratchet.core.contract.state import PolicyStage, PolicyVersion, Route, ServedPolicy
from ratchet.core.errors import Rejected
from ratchet.core.rules.arms import policy_name
from ratchet.core.rules.bundles import check_bundle, model_name
from ratchet.core.service.asgi import Answer, Handler, Request, json_response
from ratchet.core.service.problems import HttpError
from tests.support.contract_files import ROOT
from tests.support.running import listening

KIND = Bundle(
    model=BundleModel(upstream="openai", name="small"),
    instructions=Instructions(text="Be kind.", mode="prepend"),
    tools={"look_up": ToolTexts(description="Looks up.")},
    overrides=SamplingValues(temperature=1.0),
)


@dataclass
class Deployer:
    """Has the policies of `support`: version 0, which is stable at first, and what is registered."""

    bundles: list[Bundle] = field(default_factory=lambda: [NO_BUNDLE])
    stable: int = 0
    stages: dict[int, PolicyStage] = field(default_factory=dict[int, PolicyStage])
    adapter: int | None = None
    """The version that is no bundle."""
    asked: list[BundleIn] = field(default_factory=list[BundleIn])
    removed: list[RemoveIn] = field(default_factory=list[RemoveIn])
    rollouts: list[RolloutOut] = field(default_factory=list[RolloutOut])
    """The role's newest one, at each question the next; the last one stays."""
    verdict: PolicyStage | None = None
    """The stage of the newest policy, once the last rollout is seen."""
    warning: str | None = None
    forgets: bool = False
    """The role is removed once something was registered."""

    def policy(self, version: int) -> PolicyVersion:
        bundle = self.bundles[version]
        digest = sha256(msgspec.json.encode(bundle)).hexdigest()
        ordinary = PolicyStage.STABLE if version == self.stable else PolicyStage.REGISTERED
        return PolicyVersion(
            role="support",
            version=version,
            name=policy_name("support", version, digest),
            digest=digest,
            uri=f"s3://policies/{digest}.json",
            kind="adapter" if version == self.adapter else "bundle",
            base_model=model_name(bundle),
            created_at=datetime(2026, 1, 2 if version == 0 else 1, tzinfo=UTC),
            stage=self.stages.get(version, ordinary),
            reason="it names an unknown tool",
        )

    def rollout(self) -> RolloutOut:
        """Raises `HttpError` 404 without one."""
        if not self.rollouts:
            raise HttpError(404, "there was no rollout of support yet")
        if len(self.rollouts) > 1:
            return self.rollouts.pop(0)
        if self.verdict is not None:
            self.stages[len(self.bundles) - 1] = self.verdict
        return self.rollouts[0]

    def find(self, method: str, path: str) -> Handler:
        async def answer(request: Request) -> Answer:
            version = path.removeprefix("/v1/policies/support").strip("/").split("/")[0]
            if path.endswith("/remove"):
                self.removed.append(msgspec.convert(request.json_object(), RemoveIn))
                return json_response(msgspec.to_builtins(RolePoliciesOut(role="support", route=None, policies=[])))
            if path == "/v1/rollouts/support":
                return json_response(msgspec.to_builtins(self.rollout()))
            if method == "POST":
                return json_response(
                    msgspec.to_builtins(self.register(msgspec.convert(request.json_object(), BundleIn)))
                )
            if version:
                number = int(version)
                return json_response(msgspec.to_builtins(self.out(number, new=False)))
            stable = self.policy(self.stable)
            served = ServedPolicy(version=stable.version, name=stable.name, digest=stable.digest)
            kept = 0 if self.forgets and self.asked else len(self.bundles)
            policies = [self.policy(version) for version in range(kept)]
            known = RolePoliciesOut(role="support", route=Route(role="support", stable=served), policies=policies)
            return json_response(msgspec.to_builtins(known))

        if not path.startswith(("/v1/policies/support", "/v1/rollouts/support")):
            raise HttpError(404, path)
        return answer

    def out(self, version: int, *, new: bool) -> BundleOut:
        policy, bundle = self.policy(version), self.bundles[version]
        return BundleOut(policy=policy, bundle=bundle, new=new, warning=self.warning)

    def register(self, order: BundleIn) -> BundleOut:
        self.asked.append(order)
        try:
            check_bundle(order.bundle)
        except Rejected as error:
            raise HttpError(400, str(error)) from error
        model = order.bundle.model or self.bundles[self.stable].model
        self.bundles.append(msgspec.structs.replace(order.bundle, model=model))
        made = self.out(len(self.bundles) - 1, new=True)
        if order.dry_run:
            self.bundles.pop()
        return made


@asynccontextmanager
async def deployer(monkeypatch: pytest.MonkeyPatch, *bundles: Bundle, stable: int = 0) -> AsyncIterator[Deployer]:
    fake = Deployer([NO_BUNDLE, *bundles], stable)
    async with listening(fake.find) as url:
        monkeypatch.setenv("RATCHET_DEPLOYER_URL", url)
        yield fake


async def typed(directory: Path, *words: str) -> int:
    return await asyncio.to_thread(main, ["bundles", *words, "--dir", str(directory)])


async def test_the_command_line_names_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "better.md").write_text("For {{variables.shop}}: {{instructions}}\n")
    (tmp_path / "look_up.md").write_text("Looks up an order.\n")
    (tmp_path / "refund.json").write_text('{"description": "Pays back.", "parameters": {"order": "Its number."}}')
    (tmp_path / "examples.jsonl").write_text('{"role":"user","content":"Hi"}\n{"role":"assistant","content":"Hello"}\n')
    (tmp_path / "format.json").write_text('{"type": "json_object"}')
    parts = (
        *("--instructions", "better.md", "--append", "--model", "openai/org/small"),
        *("--tool", "look_up=look_up.md", "--tool", "refund=refund.json", "--hide-tool", "erase"),
        *("--examples", "examples.jsonl", "--response-format", "format.json"),
        *("--set", "temperature=.2", "--set", "reasoning_effort=low", "--default", "seed=3"),
    )
    async with deployer(monkeypatch) as fake:
        assert await typed(tmp_path, "create", "support", *parts, "--reason", "tone", "--actor", "ana") == ExitCode.DONE
    assert fake.asked[0] == BundleIn(
        bundle=Bundle(
            model=BundleModel(upstream="openai", name="org/small"),
            instructions=Instructions(
                text="For {{variables.shop}}: {{instructions}}", mode="append", variables=("shop",)
            ),
            tools={
                "look_up": ToolTexts(description="Looks up an order."),
                "refund": ToolTexts(description="Pays back.", parameters={"order": "Its number."}),
                "erase": ToolTexts(hidden=True),
            },
            examples=(Example(role="user", content="Hi"), Example(role="assistant", content="Hello")),
            overrides=SamplingValues(temperature=0.2, reasoning_effort="low"),
            defaults=SamplingValues(seed=3),
            response_format={"type": "json_object"},
        ),
        actor="ana",
        reason="tone",
    )
    shown = capsys.readouterr().out
    assert "support@1-" in shown
    assert "beside support@0" in shown
    assert "after the agent's; need shop of the request" in shown


async def test_a_bundle_from_another_keeps_its_other_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = ("--hide-tool", "look_up", "--set", "seed=3")
    async with deployer(monkeypatch, KIND, stable=1) as fake:
        for base in ("stable", "1"):
            assert await typed(tmp_path, "create", "support", "--from", base, *changed) == ExitCode.DONE
        assert await typed(tmp_path, "create", "support", "--from", "9", *changed) == ExitCode.FAILED
    assert [order.bundle for order in fake.asked] == [
        msgspec.structs.replace(
            KIND, tools={"look_up": ToolTexts(hidden=True)}, overrides=SamplingValues(temperature=1.0, seed=3)
        )
    ] * 2


async def test_a_model_is_an_upstreams_or_a_policy_of_the_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with deployer(monkeypatch, KIND, KIND, stable=1) as fake:
        fake.adapter = 1
        assert await typed(tmp_path, "create", "support", "--model", "support@1") == ExitCode.DONE
        assert await typed(tmp_path, "create", "support", "--model", "support@2") == ExitCode.FAILED
        policy = fake.policy(1)
    assert fake.asked[0].bundle.model == BundleModel(name=policy.name, digest=policy.digest)


async def test_a_dry_run_has_the_order_checked_and_registers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with deployer(monkeypatch) as fake:
        line = ("create", "support", "--set", "seed=1", "--dry-run", "--json")
        assert await typed(tmp_path, *line) == ExitCode.DONE
    document = json.loads(capsys.readouterr().out)
    assert document["body"].keys() == {"bundle", "actor", "reason"}
    assert (document["dry_run"], document["body"]["bundle"]) == (True, {"overrides": {"seed": 1}})
    assert [order.dry_run for order in fake.asked] == [True]
    assert len(fake.bundles) == 1


async def test_an_export_that_is_applied_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with deployer(monkeypatch, KIND) as fake:
        for fake.stable in (0, 1):
            folder = str(tmp_path / str(fake.stable))
            assert await typed(tmp_path, "export", "support", folder) == ExitCode.DONE
            assert await typed(tmp_path, "apply", "support", folder) == ExitCode.PARTLY
    assert fake.asked == []
    assert "nothing new: support@1-" in capsys.readouterr().out


async def test_a_folder_that_changes_something_becomes_a_candidate_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "instructions.md").write_text("Be brief.\n")
    async with deployer(monkeypatch, KIND, stable=1) as fake:
        line = ("apply", "support", str(tmp_path / "new"), "--json")
        assert await typed(tmp_path, *line) == ExitCode.DONE
        assert json.loads(capsys.readouterr().out)["new"] is True
        assert await typed(tmp_path, *line) == ExitCode.PARTLY  # though the candidate got stable's model
        assert json.loads(capsys.readouterr().out) == {
            "policy": fake.policy(2).name,
            "version": 2,
            "new": False,
            "changes": [],
        }
    assert len(fake.asked) == 1


async def test_a_folder_does_not_try_again_what_was_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with deployer(monkeypatch, KIND) as fake:
        fake.stages[1] = PolicyStage.ROLLED_BACK
        assert await typed(tmp_path, "export", "support@1", str(tmp_path / "old")) == ExitCode.DONE
        assert await typed(tmp_path, "apply", "support", str(tmp_path / "old")) == ExitCode.PARTLY
    assert fake.asked == []
    assert "(rolled_back) changes the same: `ratchet rollout start support 1` tries it" in capsys.readouterr().out


def rollout_of(version: int, state: str, **changes: object) -> RolloutOut:
    """The newest rollout of `support`, which is of this version."""
    example = json.loads((ROOT / "http/examples/deployer/RolloutOut.json").read_text())
    candidate = {"version": version, "name": f"support@{version}-{version:08x}", "digest": f"{version:064x}"}
    shown = {"candidate": candidate, "state": state, "parked": False, "progress": None}
    return msgspec.convert({**example, **shown, **changes}, RolloutOut)


async def test_a_candidate_waits_for_the_canary_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with deployer(monkeypatch, KIND) as fake:
        fake.rollouts = [rollout_of(1, "running")]
        assert await typed(tmp_path, "create", "support", "--set", "seed=3") == ExitCode.DONE
        assert "it waits for the rollout of support@1-00000001, which is running" in capsys.readouterr().out


VERDICTS = [
    ("running", PolicyStage.CANARY, ExitCode.DONE, "it has passed its gates, and is canary"),
    ("refused", PolicyStage.REFUSED, ExitCode.FAILED, "it is refused: it names an unknown tool"),
    ("superseded", PolicyStage.SUPERSEDED, ExitCode.PARTLY, "it is superseded: it names an unknown tool"),
    ("awaiting_approval", None, ExitCode.PARTLY, "a person decides, by `ratchet rollout approve support`: "),
]
"""State of the candidate's rollout, its stage, how the command ends, and what it says."""


@pytest.mark.parametrize(("state", "stage", "code", "words"), VERDICTS)
async def test_a_wait_ends_with_the_verdict_of_the_gates(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: str,
    stage: PolicyStage | None,
    code: ExitCode,
    words: str,
) -> None:
    async with deployer(monkeypatch, KIND) as fake:
        fake.rollouts, fake.verdict = [rollout_of(1, "running"), rollout_of(2, "gating"), rollout_of(2, state)], stage
        assert await typed(tmp_path, "create", "support", "--set", "seed=3", "--wait") == code
    output = capsys.readouterr()
    assert "its gates run; over: " in output.err
    assert f": {words}" in output.out


async def test_a_wait_ends_when_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ("create", "support", "--set", "seed=3", "--timeout", "1")
    async with deployer(monkeypatch, KIND) as fake:
        fake.rollouts = [rollout_of(1, "running", parked=True)]
        assert await typed(tmp_path, *line) == ExitCode.USAGE
        assert await typed(tmp_path, *line, "--wait", "--json") == ExitCode.PARTLY
    answer = json.loads(capsys.readouterr().out)
    assert (answer["stage"], "`ratchet rollout resume support`" in answer["standing"]) == ("registered", True)


async def test_a_wait_for_a_role_that_is_removed_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with deployer(monkeypatch, KIND) as fake:
        fake.forgets = True
        line = ("create", "support", "--set", "seed=3", "--wait", "--timeout", "5")
        assert await typed(tmp_path, *line) == ExitCode.FAILED
    assert "is not there any more: support was removed" in capsys.readouterr().err


async def test_an_export_writes_only_over_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, old = tmp_path / "kept", tmp_path / "old"
    for path in (kept / "notes.txt", old / "tools" / "gone.md"):
        path.parent.mkdir(parents=True)
        path.write_text("Mine.")
    async with deployer(monkeypatch, KIND):
        for line in ((kept,), (kept, "--replace"), (old,)):
            assert await typed(tmp_path, "export", "support@1", *map(str, line)) == ExitCode.FAILED
        assert await typed(tmp_path, "export", "support@1", str(old), "--replace") == ExitCode.DONE
    assert (kept / "notes.txt").read_text() == "Mine."
    assert not (old / "tools" / "gone.md").exists()


async def test_two_policies_are_compared_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = msgspec.structs.replace(KIND, instructions=Instructions(text="Be brief.", mode="prepend"))
    async with deployer(monkeypatch, KIND, other, stable=1):
        assert await typed(tmp_path, "diff", "support", "support@2") == ExitCode.DONE
        words = capsys.readouterr().out
        assert await typed(tmp_path, "diff", "support", "support@2", "--json") == ExitCode.DONE
        (change,) = json.loads(capsys.readouterr().out)["changes"]
        assert await typed(tmp_path, "diff", "support", "support@1") == ExitCode.DONE
    assert "they change the same" in capsys.readouterr().out
    assert "-Be kind.\n+Be brief.\n" in words
    assert (change["part"], change["words"]) == ("instructions", "before the agent's (+1 -1 lines)")


async def test_the_latest_policy_is_never_version_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with deployer(monkeypatch, KIND):
        assert await typed(tmp_path, "show", "support@latest", "--json") == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["policy"]["version"] == 1


async def test_a_policy_is_shown_with_its_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with deployer(monkeypatch, KIND):
        assert await typed(tmp_path, "show", "support@1") == ExitCode.DONE
        assert "--- instructions\nBe kind.\n" in capsys.readouterr().out
        assert await typed(tmp_path, "show", "support") == ExitCode.DONE
        assert "calls as agents send them" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["--instructions", "none.md"], ExitCode.FAILED, "no such file: none.md"),
        (["--instructions", "huge.md"], ExitCode.FAILED, "huge.md has more than"),
        (["--instructions", "wrong.md"], ExitCode.FAILED, "wrong.md is not text in UTF-8"),
        (["--instructions", "secret.md"], ExitCode.FAILED, "{{secret}} in the instructions is neither"),
        (["--append"], ExitCode.USAGE, "--instructions"),
        (["--tool", "=good.md"], ExitCode.USAGE, "the tool has no name"),
        (["--tool", "x"], ExitCode.USAGE, "NAME=FILE"),
        (["--tool", "x=good.md", "--hide-tool", "x"], ExitCode.USAGE, "x is described and hidden"),
        (["--set", "temprature=1"], ExitCode.USAGE, "there are temperature, top_p"),
        (["--set", "temperature=warm"], ExitCode.USAGE, "--set temperature=warm: Expected `float"),
        (["--default", "top_p=3"], ExitCode.USAGE, "--default top_p=3: Expected `float"),
        (["--model", "/x"], ExitCode.USAGE, "UPSTREAM/MODEL"),
        (["--model", "support@7"], ExitCode.FAILED, "no such policy: support@7"),
        (["--response-format", "good.md"], ExitCode.FAILED, "good.md is not a JSON object"),
        (["--examples", "good.md"], ExitCode.FAILED, "good.md, line 1, is not a JSON object"),
        ([], ExitCode.FAILED, "the bundle changes nothing"),
    ],
)
async def test_a_wrong_part_is_one_line(
    words: list[str],
    code: ExitCode,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.md").write_text("Hi")
    (tmp_path / "huge.md").write_bytes(b"x" * (10 << 20))
    (tmp_path / "wrong.md").write_bytes(b"\xff")
    (tmp_path / "secret.md").write_text("{{secret}}")
    async with deployer(monkeypatch) as fake:
        assert await typed(tmp_path, "create", "support", *words) == code
    line = capsys.readouterr().err
    assert problem in line
    assert line.count("\n") == 1
    assert fake.asked == []


async def test_a_role_that_agents_do_not_call_is_warned_of_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with deployer(monkeypatch) as fake:
        fake.warning = "support has no policy, and no agent has called it within a week; did you mean supports?"
        assert await typed(tmp_path, "create", "support", "--set", "temperature=.2") == ExitCode.DONE
        assert fake.warning in " ".join(capsys.readouterr().err.split())
        words = ["policies", "remove", "support", "--actor", "ana", "--dir", str(tmp_path)]
        assert await asyncio.to_thread(main, [*words, "--dry-run"]) == ExitCode.DONE
        assert await asyncio.to_thread(main, words) == ExitCode.DONE
    assert [order.dry_run for order in fake.removed] == [True, False]
    assert fake.removed[1].actor == "ana"
    assert "removed support" in capsys.readouterr().out
