// A table of jobs: state, progress, result.

import type { ComponentChildren } from "preact";
import { duration, share, shortId } from "../format.ts";
import { href } from "../route.ts";
import { Meter } from "../ui/panel.tsx";
import { Pill, Status } from "../ui/status.tsx";
import { Table } from "../ui/table.tsx";
import { DataText, Short } from "../ui/text.tsx";
import { Ago, useNow } from "../ui/time.tsx";
import { doneShare, heartbeatWarning, isActive, progressText, resultText, tookSeconds, type Job } from "./jobs.ts";

/** `first`: a column before all others, such as a tick to choose by. */
export function JobTable({ caption, jobs, chosen }: { caption: string; jobs: readonly Job[]; chosen?: (job: Job) => ComponentChildren }) {
  const now = useNow();
  return (
    <Table caption={caption} rows={jobs} rowKey={(job) => job.training_job_id} columns={[
      { name: "Job", show: (job) => <a class="open" href={href("training", job.training_job_id)}><span class="id">{shortId(job.training_job_id)}</span></a> },
      { name: "State", show: (job) => <JobState job={job} now={now} /> },
      { name: "Algorithm and role", show: (job) => <><Short text={job.algorithm} /> <span class="block muted small"><Short text={job.role} /></span></> },
      { name: "Progress", show: (job) => <JobProgress job={job} /> },
      { name: "Result", show: (job) => <span class="result wrap"><DataText text={resultText(job)} most={120} /></span> },
      { name: "Took", isNumber: true, show: (job) => took(job, now) },
      { name: "Asked for", show: (job) => <Ago at={job.created_at} /> },
      ...(chosen === undefined ? [] : [{ name: "Compare", show: chosen }]),
    ]} />
  );
}

export function JobState({ job, now }: { job: Job; now: number }) {
  return (
    <span class="row tight">
      <Status state={job.state} />
      {job.cancel_requested && isActive(job) && <Pill tone="warn" icon="wait">stopping</Pill>}
      {heartbeatWarning(job, now) !== null && <Pill tone="warn" icon="warn">silent</Pill>}
      {job.attempt > 1 && <span class="muted small nowrap">attempt {job.attempt}</span>}
    </span>
  );
}

export function JobProgress({ job }: { job: Job }) {
  const done = doneShare(job);
  if (job.state === "completed" || done === null) return <span class="muted small">{job.state === "completed" ? (job.progress?.current_step == null ? "" : `${job.progress.current_step} train steps`) : isActive(job) ? progressText(job) : ""}</span>;
  return (
    <span class="job-progress">
      <Meter value={done} label={`Progress of job ${job.training_job_id}: ${share(done)}`} />
      <span class="small muted">{progressText(job)}</span>
    </span>
  );
}

function took(job: Job, now: number): string {
  const seconds = tookSeconds(job, now);
  return seconds === null ? "–" : duration(seconds);
}
