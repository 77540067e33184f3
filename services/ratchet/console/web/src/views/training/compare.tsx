// Two jobs: their curves over each other, and what was different in what was asked for.

import { useResource } from "../../api/resource.ts";
import type { ConsoleSchemas } from "../../api/types.ts";
import { count, duration, shortId } from "../../format.ts";
import { JobState } from "../../parts/job_list.tsx";
import { resultText, tookSeconds, type Job } from "../../parts/jobs.ts";
import { href } from "../../route.ts";
import { Empty, Page, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText } from "../../ui/text.tsx";
import { Ago, useNow } from "../../ui/time.tsx";
import { CurveFrame, useCurves } from "./curves.tsx";
import { curveName, differences, overEachOther } from "./curves.ts";

type Curves = ConsoleSchemas["CurvesOut"];

export function ComparePage({ one, other }: { one: string; other: string }) {
  const [first, second] = [useJob(one), useJob(other)];
  const [left, right] = [useCurves(one, first.data), useCurves(other, second.data)];
  const names = [shortId(one), shortId(other)] as const;
  return (
    <Page title="Two jobs" lead="The same curve of both over each other; the full line is the first job." actions={<a class="button" href={href("training")}>All jobs</a>}>
      <Loaded of={first} what="the first job">{(a) => <Loaded of={second} what="the second job">{(b) => <Heads jobs={[a, b]} names={names} />}</Loaded>}</Loaded>
      <Loaded of={left} what="the first job's curves">{(a) => <Loaded of={right} what="the second job's curves">{(b) => <Both curves={[a, b]} names={names} />}</Loaded>}</Loaded>
    </Page>
  );
}

function useJob(id: string) {
  return useResource<Job>(`/coordinator/v1/jobs/${encodeURIComponent(id)}`, { on: (hint) => hint.subject === id });
}

function Heads({ jobs, names }: { jobs: readonly [Job, Job]; names: readonly [string, string] }) {
  const now = useNow();
  const [one, other] = jobs;
  const row = (name: string, show: (job: Job) => preact.ComponentChildren) => ({ name, one: show(one), other: show(other) });
  const rows = [
    row("State", (job) => <JobState job={job} now={now} />),
    row("Algorithm", (job) => job.algorithm),
    row("Role", (job) => <DataText text={job.role} />),
    row("Rows", (job) => (job.trajectories == null ? "–" : count(job.trajectories))),
    row("Data", (job) => (job.snapshot == null ? "–" : <span class="id">{shortId(job.snapshot.digest)}</span>)),
    row("Result", (job) => <DataText text={resultText(job)} most={200} />),
    row("Took", (job) => { const seconds = tookSeconds(job, now); return seconds === null ? "–" : duration(seconds); }),
    row("Asked for", (job) => <Ago at={job.created_at} />),
    ...differences(one.request.training_config, other.request.training_config)
      .filter(({ name }) => name !== "algorithm")
      .map(({ name, one: a, other: b }) => ({ name, one: <Given value={a} />, other: <Given value={b} /> })),
  ];
  const link = (job: Job, name: string) => <a href={href("training", job.training_job_id)}><span class="id">{name}</span></a>;
  return (
    <Panel title="The two of them" flush actions={<span class="row">{link(one, names[0])} <span class="muted">and</span> {link(other, names[1])}</span>}>
      <Table caption="The two of them" rows={rows} rowKey={(each) => each.name} columns={[
        { name: "What", show: (each) => each.name },
        { name: names[0], show: (each) => each.one },
        { name: names[0] === names[1] ? `${names[1]} (second)` : names[1], show: (each) => each.other },
      ]} />
    </Panel>
  );
}

/** What a request gives, on as many lines as it takes: the digests of two snapshots stand beside each other. */
function Given({ value }: { value: string }) {
  return <span class="wrap"><DataText text={value === "" ? "by default" : value} most={120} /></span>;
}

function Both({ curves, names }: { curves: readonly [Curves, Curves]; names: readonly [string, string] }) {
  const all = overEachOther(curves[0].curves, curves[1].curves);
  if (all.length === 0) return <Panel title="Curves"><Empty>Neither of them has a curve yet.</Empty></Panel>;
  return (
    <div class="grid stretch" style={{ "--least": "380px" }}>
      {all.map((curve) => (
        <CurveFrame key={curve.name} name={curveName(curve)} meaning={curve.meaning} good={curve.good}
          series={[{ name: `${names[0]} (first)`, points: curve.one }, { name: `${names[1]} (second)`, points: curve.other }]} />
      ))}
    </div>
  );
}
