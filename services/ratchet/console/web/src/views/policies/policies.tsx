// Policies by role and version; below one, its lineage; and two of them on the same prompts.

import { useState } from "preact/hooks";
import { useResource } from "../../api/resource.ts";
import type { CoordinatorSchemas, DeployerSchemas, Model } from "../../api/types.ts";
import { measure } from "../../format.ts";
import { href, type Route } from "../../route.ts";
import { navigate } from "../../router.ts";
import { Empty, Page, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { ActButton } from "../../ui/scope.tsx";
import { Status } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, PolicyName } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { ActDialog } from "../rollouts/act.tsx";
import { CompareView } from "./compare.tsx";
import { answers, byRole } from "./models.ts";
import { paths } from "./paths.ts";
import { Continued, PolicyView } from "./policy.tsx";

export function PoliciesView({ route }: { route: Route }) {
  const [, role, version] = route.parts;
  if (role === undefined) return <AllPolicies />;
  if (role === "compare" && version === undefined) return <CompareView params={route.params} />;
  if (version !== undefined && /^\d+$/.test(version)) return <PolicyView key={`${role} ${version}`} role={role} version={Number(version)} params={route.params} />;
  return <AllPolicies only={role} />;
}

function AllPolicies({ only }: { only?: string }) {
  const all = useResource<CoordinatorSchemas["ModelsOut"]>(paths.all, { on: (hint) => hint.kind === "rollout" || hint.kind === "job", everyMs: 30_000 });
  const rollouts = useResource<DeployerSchemas["RolloutsOut"]>("/deployer/v1/rollouts", { on: (hint) => hint.kind === "rollout", everyMs: 30_000 });
  const candidates = new Set(rollouts.data?.rollouts.filter((one) => one.finished_at == null).map((one) => one.candidate.name));
  const [starting, setStarting] = useState<Model | null>(null);
  return (
    <Page title={only === undefined ? "Policies" : `Policies of ${only}`} lead="Every version, trained or written: what it changes or learned from, how it was judged, and whether it serves."
      actions={<a class="button" href={href("policies", "compare")}>Compare two</a>}>
      {only !== undefined && <nav aria-label="Where you are" class="small"><a href={href("policies")}>Policies</a> › <DataText text={only} /></nav>}
      <Loaded of={all} what="the policies">
        {({ models }) => <Roles models={only === undefined ? models : models.filter((model) => model.role === only)} candidates={candidates} onStart={setStarting} />}
      </Loaded>
      {starting !== null && <ActDialog role={starting.role} act="start" rollout={null} version={starting.version} onClose={() => setStarting(null)} onDone={() => navigate(href("rollouts", starting.role))} />}
    </Page>
  );
}

/** States in which a version needs no start. */
const UNDER_WAY: Readonly<Record<string, string>> = { stable: "serves", canary: "under way" };

function Roles({ models, candidates, onStart }: { models: readonly Model[]; candidates: ReadonlySet<string>; onStart: (model: Model) => void }) {
  const roles = byRole(models);
  if (roles.length === 0) return <Panel title="Versions"><Empty>No policy yet: the first bundle that is created, or training that completes, registers one.</Empty></Panel>;
  return <>{roles.map(([role, versions]) => <Versions key={role} role={role} versions={versions} candidates={candidates} onStart={onStart} />)}</>;
}

const SHOWN = 25;

function Versions({ role, versions, candidates, onStart }: { role: string; versions: readonly Model[]; candidates: ReadonlySet<string>; onStart: (model: Model) => void }) {
  const [most, setMost] = useState(SHOWN);
  return (
    <Panel title={role} flush actions={versions.length > most && <button type="button" class="button small" onClick={() => setMost(most * 4)}>More of {versions.length.toLocaleString("en")}</button>}>
      <Table caption={`Versions of ${role}, newest first`} rows={versions.slice(0, most)} rowKey={(model) => model.version} columns={[
        { name: "Policy", show: (model) => <a href={href("policies", role, model.version)}><PolicyName name={model.name} /></a> },
        { name: "State", show: (model) => <Status state={model.state} /> },
        { name: "Kind", show: (model) => <div class="kind">{model.kind}<span class="muted small block"><DataText text={model.kind === "bundle" ? answers(model) : `by ${model.algorithm ?? "an unknown algorithm"}`} most={80} /></span></div> },
        { name: "Continues", show: (model) => <Continued model={model} /> },
        { name: "Learned from", isNumber: true, show: (model) => model.training_samples?.toLocaleString("en") ?? "–" },
        { name: "Final reward", isNumber: true, show: (model) => measure(model.final_reward) },
        { name: "Made", show: (model) => <Ago at={model.created_at} /> },
        { name: "Act", show: (model) => UNDER_WAY[model.state] !== undefined || candidates.has(model.name) ? <a href={href("rollouts", role)}>{UNDER_WAY[model.state] ?? "under way"}</a> : <ActButton scope="operate" kind="small" onClick={() => onStart(model)}>Roll out<span class="hidden"> {model.name}</span></ActButton> },
      ]} />
    </Panel>
  );
}
