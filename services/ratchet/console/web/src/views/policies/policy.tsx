// One policy: what it is, what it changes of calls, back to its job, its data and the people behind it.

import { useState } from "preact/hooks";
import { useResource } from "../../api/resource.ts";
import type { Model } from "../../api/types.ts";
import { instant, measure, plural, words } from "../../format.ts";
import { Written } from "../../parts/written.tsx";
import { href } from "../../route.ts";
import { navigate } from "../../router.ts";
import { Empty, Facts, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Loaded } from "../../ui/resource.tsx";
import { ActButton } from "../../ui/scope.tsx";
import { Status } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, Id, PolicyName } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { ActDialog } from "../rollouts/act.tsx";
import { EvidenceOf } from "../rollouts/record.tsx";
import { BundlePanels } from "./bundle.tsx";
import { card, continued, gateRows, isTrained, kindOf, type Lineage } from "./models.ts";
import { paths } from "./paths.ts";

/** What a state means for the role, where the registry's stage says less. */
const STANDS: Readonly<Record<string, string>> = { stable: "serves the role", canary: "is compared" };

export function PolicyView({ role, version, params }: { role: string; version: number; params: Readonly<Record<string, string>> }) {
  const [offset, setOffset] = useState(0);
  const lineage = useResource<Lineage>(paths.lineage(role, version, offset), { on: (hint) => hint.kind === "rollout" && hint.role === role });
  const [isStarting, setStarting] = useState(false);
  const state = lineage.data?.policy.state;
  const actions = (
    <>
      <a class="button" href={href("policies", "compare", { role, left: version })}>Compare</a>
      {state !== undefined && state !== "stable" && state !== "canary" && <ActButton scope="operate" kind="main" onClick={() => setStarting(true)}>Roll out</ActButton>}
    </>
  );
  return (
    <Page title={`${role}, version ${version}`} actions={actions}>
      <nav aria-label="Where you are" class="small"><a href={href("policies")}>Policies</a> › <a href={href("policies", role)}><DataText text={role} /></a> › version {version}</nav>
      <Loaded of={lineage} what={`the lineage of version ${version} of ${role}`}>
        {(answer) => <Whole lineage={answer} other={params["with"]} onOffset={setOffset} />}
      </Loaded>
      {isStarting && <ActDialog role={role} act="start" rollout={null} version={version} onClose={() => setStarting(false)} onDone={() => navigate(href("rollouts", role))} />}
    </Page>
  );
}

function Whole({ lineage, other, onOffset }: { lineage: Lineage; other: string | undefined; onOffset: (offset: number) => void }) {
  const { policy } = lineage;
  const hasHistory = isTrained(policy);
  return (
    <>
      {hasHistory && lineage.missing.length > 0 && <Banner tone="info" title="Parts of its history are not kept any more">{lineage.missing.map((one) => <p key={one}><DataText text={one} /></p>)}</Banner>}
      {hasHistory && <Descent lineage={lineage} />}
      {policy.kind === "bundle" && <BundlePanels role={policy.role} version={policy.version} other={other} />}
      <div class="grid">
        <About policy={policy} />
        {hasHistory && <Learned lineage={lineage} />}
      </div>
      <Judged policy={policy} />
      {hasHistory && <People lineage={lineage} />}
      <Trajectories lineage={lineage} onOffset={onOffset} />
      <Card lineage={lineage} />
    </>
  );
}

/** A link to the version that a policy was made from. */
export function Continued({ model }: { model: Model }) {
  if (model.parent != null) return <a href={href("policies", model.role, model.parent)}>version {model.parent}</a>;
  return <span class="muted">{continued(model) ?? "–"}</span>;
}

/** The line from people and trajectories to what serves. */
function Descent({ lineage }: { lineage: Lineage }) {
  const { policy, job, snapshot, trajectories, preferences } = lineage;
  const raters = Object.keys(snapshot?.raters ?? {}).length || lineage.feedback.length;
  const steps = [
    { name: "People", text: raters === 0 ? "no feedback counted" : plural(raters, "rater"), link: null },
    { name: preferences.total > 0 ? "Preferences" : "Trajectories", text: (preferences.total || trajectories.total).toLocaleString("en"), link: null },
    { name: "Snapshot", text: snapshot == null ? "not kept" : `${snapshot.rows.toLocaleString("en")} ${snapshot.format}`, link: null },
    { name: "Job", text: job == null ? "not kept" : `${job.algorithm}, ${job.state}`, link: job == null ? null : href("training", job.training_job_id) },
    { name: "Policy", text: policy.name, link: null },
    { name: words(policy.state), text: STANDS[policy.state] ?? words(policy.stage), link: href("rollouts", policy.role) },
  ];
  return (
    <ol class="descent" aria-label="Where it comes from">
      {steps.map((step) => (
        <li key={step.name}>
          <span class="muted small">{step.name}</span>
          {step.link === null ? <b><DataText text={step.text} /></b> : <a href={step.link}><b><DataText text={step.text} /></b></a>}
        </li>
      ))}
    </ol>
  );
}

function About({ policy }: { policy: Model }) {
  return (
    <Panel title="The policy" actions={<Status state={policy.state} />}>
      <Facts rows={[
        ["Name", <PolicyName name={policy.name} />],
        ["Kind", <DataText text={kindOf(policy)} most={200} />],
        ["Continues", continued(policy) === null ? null : <Continued model={policy} />],
        ["Made", <><Ago at={policy.created_at} /> <span class="muted">({instant(policy.created_at)})</span></>],
        ["Why it is where it is", policy.reason == null ? null : <DataText text={policy.reason} most={600} />],
        ["Manifest", policy.uri === "" ? null : <span class="id"><DataText text={policy.uri} /></span>],
        ["Digest", <Id id={policy.digest} label="digest" />],
      ]} />
    </Panel>
  );
}

function Learned({ lineage: { policy, job, snapshot } }: { lineage: Lineage }) {
  return (
    <Panel title="What it learned from">
      <Facts rows={[
        ["Algorithm", policy.algorithm ?? job?.algorithm ?? "unknown"],
        ["Job", job == null ? <span class="muted">not kept any more</span> : <><a href={href("training", job.training_job_id)}><DataText text={job.training_job_id} /></a> <Status state={job.state} /></>],
        ["Asked for by", job == null ? null : <><DataText text={job.requester} /> <span class="muted">({words(job.trigger_reason)})</span></>],
        ["Snapshot", snapshot == null ? <span class="muted">not kept any more</span> : <>{snapshot.rows.toLocaleString("en")} {snapshot.format} <Id id={snapshot.digest} label="digest of the snapshot" /></>],
        ["Rewards by", snapshot?.reward_function ?? null],
        ["Left out", Object.keys(snapshot?.left_out ?? {}).length === 0 ? null : <ul>{Object.entries(snapshot?.left_out ?? {}).map(([why, rows]) => <li key={why}>{rows.toLocaleString("en")}: <DataText text={words(why)} /></li>)}</ul>],
        ["Final reward", policy.final_reward == null ? null : measure(policy.final_reward)],
        ...Object.entries(policy.metrics ?? {}).map(([name, value]) => [words(name), measure(value)] as const),
      ]} />
    </Panel>
  );
}

function Judged({ policy }: { policy: Model }) {
  const rows = gateRows(policy.gate);
  return (
    <Panel title="How it was judged" flush>
      {rows.length === 0 ? <Empty>No gate has run for it.</Empty> : (
        <Table caption="Gates" rows={rows} rowKey={(row) => row.gate} columns={[
          { name: "Gate", show: (row) => words(row.gate) },
          { name: "Outcome", show: (row) => row.outcome === "" ? "–" : <Status state={row.outcome} /> },
          { name: "Reason", show: (row) => <DataText text={row.reason} most={400} /> },
          { name: "Evidence", show: (row) => <EvidenceOf evidence={row.evidence} /> },
        ]} />
      )}
    </Panel>
  );
}

function People({ lineage: { feedback, snapshot, rewards } }: { lineage: Lineage }) {
  const raters = Object.entries(snapshot?.raters ?? {});
  return (
    <div class="grid">
      <Panel title="People behind it" flush>
        {feedback.length + raters.length === 0 ? <Empty>No person's opinion is among its data.</Empty> : (
          <Table caption="Raters" rowKey={(_, at) => at} rows={[
            ...raters.map(([rater, number]) => ({ rater, kind: "preferences", number })),
            ...feedback.map((one) => ({ rater: one.rater ?? one.source ?? "unnamed", kind: one.kind, number: one.count })),
          ]} columns={[
            { name: "Rater", show: (row) => <DataText text={row.rater} most={80} /> },
            { name: "Gave", show: (row) => words(row.kind) },
            { name: "Times", isNumber: true, show: (row) => row.number.toLocaleString("en") },
          ]} />
        )}
      </Panel>
      <Panel title="Rewards in its data" flush>
        {rewards.length === 0 ? <Empty>No reward was stored when the snapshot was made.</Empty> : (
          <Table caption="Rewards by function" rows={rewards} rowKey={(row) => row.function} columns={[
            { name: "Function", show: (row) => <DataText text={row.function} /> },
            { name: "Trajectories", isNumber: true, show: (row) => row.trajectories.toLocaleString("en") },
            { name: "Mean", isNumber: true, show: (row) => measure(row.mean) },
          ]} />
        )}
      </Panel>
    </div>
  );
}

function Trajectories({ lineage: { trajectories }, onOffset }: { lineage: Lineage; onOffset: (offset: number) => void }) {
  const { items, offset, total } = trajectories;
  if (total === 0) return null;
  const last = offset + items.length;
  return (
    <Panel title="Trajectories that it learned from" flush actions={
      <div class="row small">
        <span class="muted">{(offset + 1).toLocaleString("en")}–{last.toLocaleString("en")} of {total.toLocaleString("en")}</span>
        <button type="button" class="button small" disabled={offset === 0} onClick={() => onOffset(Math.max(0, offset - 50))}>Earlier</button>
        <button type="button" class="button small" disabled={last >= total} onClick={() => onOffset(offset + 50)}>Further</button>
      </div>}>
      <Table caption="Trajectories in the snapshot's order" rows={items} rowKey={(row) => row.trajectory_id} columns={[
        { name: "Trajectory", show: (row) => row.event_id == null ? <><Id id={row.trajectory_id} label="id of the trajectory" /> <span class="muted">not stored any more</span></> : <a href={href("trajectories", row.trajectory_id)}><DataText text={row.task ?? row.trajectory_id} most={60} /></a> },
        { name: "Outcome", show: (row) => row.outcome == null ? "–" : <Status state={row.outcome} plain /> },
        { name: "Reward", isNumber: true, show: (row) => measure(row.reward?.total) },
        { name: "Answered by", show: (row) => row.policy_version == null ? "–" : `version ${row.policy_version}` },
        { name: "Ended", show: (row) => row.ended_at == null ? "–" : <Ago at={row.ended_at} /> },
      ]} />
    </Panel>
  );
}

function Card({ lineage }: { lineage: Lineage }) {
  return (
    <Panel title="Model card">
      <details>
        <summary>What the registry knows, as text</summary>
        <pre class="quote"><DataText text={card(lineage)} /></pre>
      </details>
      {lineage.job != null && <Written job={lineage.job.training_job_id} what="card" />}
    </Panel>
  );
}
