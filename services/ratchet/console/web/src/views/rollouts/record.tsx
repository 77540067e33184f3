// The record of a role's rollouts: gates, decisions, the audit chain, failing trajectories, earlier rollouts.

import { useResource } from "../../api/resource.ts";
import type { Audit, ConsoleSchemas, DecisionPoint, Rollout, TrajectoryBrief } from "../../api/types.ts";
import { instant, measure, plural, share, words } from "../../format.ts";
import { href } from "../../route.ts";
import { Empty, Panel } from "../../ui/panel.tsx";
import { Banner, Loaded } from "../../ui/resource.tsx";
import { Pill, Status } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { suiteRows, type SuiteRow } from "./evidence.ts";
import { paths } from "./paths.ts";

const ROWS = 200;

/** To what a bundle changes of calls, beside what stable does. */
export function BundleLink({ rollout: { role, candidate, stable } }: { rollout: Rollout }) {
  return <a href={href("policies", role, candidate.version, { with: stable?.version })}>what it changes{stable !== null && `, beside version ${stable.version}`}</a>;
}

export function Gates({ gates }: { gates: Rollout["gates"] }) {
  return (
    <Panel title="Gates" flush>
      <Table caption="Gates with their evidence" rows={gates} rowKey={(gate) => gate.gate} columns={[
        { name: "Gate", show: (gate) => words(gate.gate) },
        { name: "Outcome", show: (gate) => <Status state={gate.outcome} /> },
        { name: "Reason", show: (gate) => <DataText text={gate.reason} most={400} /> },
        { name: "Evidence", show: (gate) => <EvidenceOf evidence={gate.evidence} /> },
      ]} />
    </Panel>
  );
}

export function EvidenceOf({ evidence }: { evidence: Readonly<Record<string, unknown>> }) {
  const suites = suiteRows(evidence);
  const members = Object.entries(evidence).filter(([name]) => name !== "suites" || suites.length === 0);
  if (suites.length > 0) return <div class="stack"><Suites rows={suites} />{members.length > 0 && <Figures members={members} />}</div>;
  return members.length === 0 ? <span class="muted">none</span> : <Figures members={members} />;
}

function Suites({ rows }: { rows: readonly SuiteRow[] }) {
  return (
    <Table caption="Suites" rows={rows} rowKey={(row) => row.suite} columns={[
      { name: "Suite", show: (row) => <DataText text={row.suite} most={80} /> },
      { name: "Stable", isNumber: true, show: (row) => row.stable },
      { name: "Candidate", isNumber: true, show: (row) => row.candidate },
      { name: "Difference", isNumber: true, show: (row) => row.difference },
      { name: "Verdict", show: (row) => <DataText text={row.verdict} most={80} /> },
    ]} />
  );
}

function Figures({ members }: { members: readonly (readonly [string, unknown])[] }) {
  return (
    <details>
      <summary>{plural(members.length, "figure")}</summary>
      <dl class="facts small">
        {members.map(([name, value]) => [
          <dt key={`${name}?`}><DataText text={words(name)} /></dt>,
          <dd key={name}><DataText text={typeof value === "number" ? measure(value) : typeof value === "string" ? value : JSON.stringify(value)} most={400} /></dd>,
        ])}
      </dl>
    </details>
  );
}

export function Decisions({ decisions }: { decisions: readonly DecisionPoint[] }) {
  const rows = decisions.slice(-ROWS).reverse();
  return (
    <Panel title="Decisions" flush actions={decisions.length > ROWS && <span class="muted small">the last {ROWS} of {decisions.length.toLocaleString("en")}</span>}>
      {rows.length === 0 ? <Empty>No decision yet.</Empty> : (
        <Table caption="Decisions, newest first" rows={rows} rowKey={(row) => row.sequence} columns={[
          { name: "Decision", show: (row) => <Status state={row.verdict} /> },
          { name: "When", show: (row) => <Ago at={row.at} /> },
          { name: "Who", show: (row) => <DataText text={row.actor} most={80} /> },
          { name: "Why", show: (row) => <DataText text={row.reason} most={400} /> },
          { name: "Stage", isNumber: true, show: (row) => row.stage + 1 },
          { name: "Traffic", isNumber: true, show: (row) => share(row.weight) },
        ]} />
      )}
    </Panel>
  );
}

export function AuditChain({ role }: { role: string }) {
  const audit = useResource<Audit>(paths.audit(role), { on: (hint) => hint.kind === "rollout" && hint.role === role });
  if (audit.error?.status === 404) return null;
  return (
    <Panel title="Audit chain" actions={<button type="button" class="button small" onClick={audit.reload}>Verify again</button>}>
      <Loaded of={audit} what="the audit chain">{(answer) => <Chain audit={answer} />}</Loaded>
    </Panel>
  );
}

function Chain({ audit }: { audit: Audit }) {
  if (!audit.whole) {
    return (
      <Banner tone="bad" title="The chain is broken">
        <p><DataText text={audit.problem ?? ""} /></p>
        {audit.first_break !== null && <p>The first decision that does not fit: number {audit.first_break.sequence}, {words(audit.first_break.verdict)} by <DataText text={audit.first_break.actor} />, {instant(audit.first_break.timestamp)}.</p>}
      </Banner>
    );
  }
  return (
    <p>
      <Pill tone="good" icon="good">Whole</Pill> {plural(audit.decisions, "decision")} checked, each against the hash of the one before
      {audit.since !== null && <>, since {instant(audit.since)}</>}. {audit.complete ? "None is older." : <span class="muted">Older ones are not kept any more.</span>}
    </p>
  );
}

export function Failures({ role, rollout }: { role: string; rollout: string }) {
  const failures = useResource<ConsoleSchemas["FailuresOut"]>(paths.failures(role, rollout), { everyMs: 60_000 });
  return (
    <Panel title="Trajectories with the lowest rewards, side by side">
      {failures.error?.status === 404 ? <Empty>No decision of this rollout is stored yet.</Empty> : <Loaded of={failures} what="failing trajectories">
        {({ stable, canary }) => (
          <div class="grid">
            <Arm name="Stable" trajectories={stable} />
            <Arm name="Canary" trajectories={canary} />
          </div>
        )}
      </Loaded>}
    </Panel>
  );
}

function Arm({ name, trajectories }: { name: string; trajectories: readonly TrajectoryBrief[] }) {
  return (
    <section aria-label={`${name}'s lowest rewards`} class="stack">
      <h3>{name}</h3>
      {trajectories.length === 0 ? <p class="muted">None yet.</p> : (
        <Table caption={`${name}'s trajectories with the lowest rewards`} rows={trajectories} rowKey={(one) => `${one.role} ${one.trajectory_id}`} columns={[
          { name: "Task", show: (one) => <a href={href("trajectories", one.trajectory_id, { role: one.role })}><DataText text={one.task_id ?? one.trajectory_id} most={60} /></a> },
          { name: "Outcome", show: (one) => <Status state={one.outcome ?? one.state} plain /> },
          { name: "Reward", isNumber: true, show: (one) => measure(one.reward) },
          { name: "Ended", show: (one) => <Ago at={one.ended_at ?? one.started_at} /> },
        ]} />
      )}
    </section>
  );
}

/** `newest`: the rollout above, which is none of the earlier ones. */
export function PastRollouts({ role, newest }: { role: string; newest: string | null }) {
  const past = useResource<ConsoleSchemas["PastRolloutsOut"]>(paths.past(role), { on: (hint) => hint.kind === "rollout" && hint.role === role });
  return (
    <Panel title="Earlier rollouts" flush>
      <Loaded of={past} what="earlier rollouts">
        {({ rollouts: all }) => {
          const rollouts = all.filter((one) => one.rollout_id !== newest);
          return rollouts.length === 0 ? <Empty>None yet.</Empty> : (
          <Table caption="Earlier rollouts of this role, newest first" rows={rollouts} rowKey={(one) => one.rollout_id} columns={[
            { name: "Rollout", show: (one) => <a href={href("rollouts", role, { rollout: one.rollout_id })}>{one.from_version === null ? "first policy" : `${one.from_version}`} → {one.to_version}</a> },
            { name: "Last decision", show: (one) => <Status state={one.verdict} /> },
            { name: "Who", show: (one) => <DataText text={one.actor} most={80} /> },
            { name: "Why", show: (one) => <DataText text={one.reason} most={240} /> },
            { name: "Decisions", isNumber: true, show: (one) => one.decisions.toLocaleString("en") },
            { name: "Began", show: (one) => <Ago at={one.began_at} /> },
            { name: "Ended", show: (one) => <Ago at={one.ended_at} /> },
          ]} />
          );
        }}
      </Loaded>
    </Panel>
  );
}
