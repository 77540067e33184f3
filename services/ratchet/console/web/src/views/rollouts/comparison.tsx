// Both arms in figures: evidence over time, differences, coverage, counts.

import { useMemo, useState } from "preact/hooks";
import type { DecisionPoint, Rollout } from "../../api/types.ts";
import { LineChart } from "../../charts/line.tsx";
import { measure, share, signed, signedShare, words } from "../../format.ts";
import { Empty, Meter, Panel } from "../../ui/panel.tsx";
import { Pill } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText } from "../../ui/text.tsx";
import { armRows, differenceRows, evidenceSeries, FAMILIES, isRelative, limits, sampleRatio, sharesOf, standing, type Difference, type DifferenceRow, type Family, type Sample } from "./evidence.ts";

const ABOUT: Readonly<Record<Family, string>> = {
  rollback: "How strongly the figures, subject by subject, speak against the canary. 1 is no evidence; at the limit it is rolled back.",
  promotion: "How strongly they say, subject by subject, that it is not worse, within its margins. The smallest of its metrics decides, with the smallest by single trajectories.",
  suspension: "The tests that roll back, by single trajectories: what they show holds for the traffic so far. At its limit each suspends the canary, and a person decides.",
  tests: "First calls and safety, subject by subject, roll back at their limit; the sample ratio holds the rollout: the arms do not get their shares.",
};

export function Evidence({ decisions, between, thresholds }: { decisions: readonly DecisionPoint[]; between: readonly Sample[]; thresholds: Readonly<Record<string, number>> }) {
  const [family, setFamily] = useState<Family>("rollback");
  const series = useMemo(() => evidenceSeries(family, decisions, between), [family, decisions, between]);
  return (
    <Panel title="Evidence over time" actions={<Families family={family} onFamily={setFamily} />}>
      <p class="muted small">{ABOUT[family]}</p>
      {series.length === 0 ? <Empty>No evidence yet: it begins with traffic.</Empty>
        : <LineChart title={`E-values of ${words(family)} over time, on a logarithmic scale`} series={series} limits={limits(family, thresholds)} kind="log" height={280} />}
    </Panel>
  );
}

function Families({ family, onFamily }: { family: Family; onFamily: (family: Family) => void }) {
  return (
    <div class="row" role="group" aria-label="Family of tests">
      {FAMILIES.map((one) => <button key={one} type="button" class={one === family ? "button small chosen" : "button small"} aria-pressed={one === family} onClick={() => onFamily(one)}>{one}</button>)}
    </div>
  );
}

export function Differences({ differences }: { differences: Readonly<Record<string, Difference>> }) {
  const rows = differenceRows(differences);
  return (
    <Panel title="How much more harm the canary does" flush>
      {rows.length === 0 ? <Empty>Nothing to compare yet.</Empty> : (
        <>
          <Table caption="Differences by metric and share of traffic" rows={rows} rowKey={(row) => row.metric} columns={[
            { name: "Metric", show: (row) => <DataText text={words(row.metric)} /> },
            { name: "Difference", isNumber: true, show: (row) => <Interval of={row.whole} metric={row.metric} /> },
            { name: "Margin", isNumber: true, show: (row) => (isRelative(row.metric) ? share(row.whole.margin) : measure(row.whole.margin)) },
            { name: "Against the margin", show: (row) => <Against of={row.whole} /> },
            ...sharesOf(differences).map((weight, place) => ({
              name: `At ${share(weight)} canary`, isNumber: true,
              show: (row: DifferenceRow) => { const part = row.shares[place]; return part == null ? <span class="muted">–</span> : <Interval of={part} metric={row.metric} />; },
            })),
          ]} />
          <p class="muted small pad">Below each difference stands its 95 % interval, which holds at every look, not only at one. The e-values decide.{rows.some((row) => isRelative(row.metric)) && " Cost stands relative to stable's mean."}</p>
        </>
      )}
    </Panel>
  );
}

function Interval({ of, metric }: { metric: string; of: { difference: number; low?: number | null; high?: number | null; stable?: number; canary?: number } }) {
  const arms = of.stable === undefined ? undefined : `${of.stable.toLocaleString("en")} trajectories of stable, ${(of.canary ?? 0).toLocaleString("en")} of the canary`;
  const show = isRelative(metric) ? signedShare : signed;
  return (
    <span title={arms}>
      {show(of.difference)}
      {of.low != null && of.high != null && <span class="muted small block nowrap">{show(of.low)} to {show(of.high)}</span>}
    </span>
  );
}

const SHOWN = { within: ["none", "good"], beyond: ["warn", "warn"], "not clear yet": ["none", "wait"] } as const;

/** A point and its interval on a line from twice the margin of good to twice the margin of harm. */
function Against({ of }: { of: Difference }) {
  const place = (value: number) => 60 + Math.max(-1, Math.min(1, value / (2 * of.margin || 1))) * 56;
  const stands = standing(of);
  const [tone, icon] = SHOWN[stands];
  return (
    <span class="row nowrap">
      <svg class="against" viewBox="0 0 120 16" width="120" height="16" aria-hidden="true">
        <rect class="good-band" x="0" y="3" width={place(of.margin)} height="10" rx="2" />
        <line class="zero" x1="60" x2="60" y1="1" y2="15" />
        <line class="edge" x1={place(of.margin)} x2={place(of.margin)} y1="1" y2="15" />
        {of.low != null && of.high != null && <line class="interval" x1={place(of.low)} x2={place(of.high)} y1="8" y2="8" />}
        <circle cx={place(of.difference)} cy="8" r="4.5" data-worse={stands === "beyond" ? "" : undefined} />
      </svg>
      <Pill tone={tone} plain icon={icon}>{stands}</Pill>
    </span>
  );
}

export function Coverage({ rollout }: { rollout: Rollout }) {
  const ratio = sampleRatio(rollout);
  const least = rollout.thresholds["coverage"] ?? null;
  const isOff = ratio.threshold !== null && ratio.eValue >= ratio.threshold;
  return (
    <Panel title="Whether the figures can be trusted">
      <div class="stack">
        {Object.entries(rollout.coverage).map(([arm, known]) => (
          <div class="coverage" key={arm}>
            <span>Outcomes known, {words(arm)}</span>
            <Meter value={known} label={`Share of outcomes known, ${arm}`} tone={least !== null && known < least ? "warn" : undefined} />
            <span class="nowrap">{share(known)}{least !== null && <span class="muted"> of {share(least)}</span>}</span>
          </div>
        ))}
        <p>
          {ratio.seen === null ? "No trajectory has started yet." : <>The canary got <b>{share(ratio.seen)}</b> of all trajectories that started; its share now is {share(ratio.expected)}. </>}
          {ratio.seen !== null && <Pill tone={isOff ? "bad" : "good"} icon={isOff ? "bad" : "good"} plain>{isOff ? "the arms do not get their shares" : "the arms get their shares"}</Pill>}
        </p>
        <p class="muted small">Test of the sample ratio, which knows the share of each stage: e-value {measure(ratio.eValue)}{ratio.threshold !== null && `, it speaks up at ${measure(ratio.threshold)}`}. Subjects in a run whose first canary trajectories fail have used up {measure(rollout.run)}, failing canary trajectories in a run {measure(rollout.run_of_trajectories)}: at {measure(rollout.thresholds["run"])} the one rolls back, the other suspends.</p>
      </div>
    </Panel>
  );
}

export function Arms({ rollout }: { rollout: Rollout }) {
  const { stable, canary, mixed } = rollout.arms;
  return (
    <Panel title="Both arms" flush actions={mixed > 0 && <span class="muted small">{mixed.toLocaleString("en")} trajectories moved from one arm to the other</span>}>
      <Table caption="Both arms in numbers" rows={armRows(stable, canary)} rowKey={(row) => row.name} columns={[
        { name: "Figure", show: (row) => <DataText text={row.name} /> },
        { name: "Stable", isNumber: true, show: (row) => <DataText text={row.stable} /> },
        { name: "Canary", isNumber: true, show: (row) => <DataText text={row.canary} /> },
      ]} />
    </Panel>
  );
}
