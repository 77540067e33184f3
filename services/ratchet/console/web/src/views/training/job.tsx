// One job: how far it is, its curves as they grow, its attempts, what it learns from, what came of it.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, post } from "../../api/client.ts";
import { useResource, type Resource } from "../../api/resource.ts";
import type { ConsoleSchemas } from "../../api/types.ts";
import { count, duration, measure, plural, shortId, words } from "../../format.ts";
import { JobProgress, JobState } from "../../parts/job_list.tsx";
import { cancelStages, hasEnded, heartbeatWarning, isActive, LEASE_S, tookSeconds, type Job } from "../../parts/jobs.ts";
import { Written } from "../../parts/written.tsx";
import { href } from "../../route.ts";
import { say } from "../../ui/announce.tsx";
import { Dialog } from "../../ui/dialog.tsx";
import { Icon } from "../../ui/icons.tsx";
import { Empty, Facts, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Loaded } from "../../ui/resource.tsx";
import { ActButton } from "../../ui/scope.tsx";
import { Status } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, Id, Short } from "../../ui/text.tsx";
import { Ago, useNow } from "../../ui/time.tsx";
import { CurvePanel } from "./curves.tsx";
import { inReadingOrder, type Attempt } from "./curves.ts";
import { Data } from "./data.tsx";

type Curves = ConsoleSchemas["CurvesOut"];

const LIVE_MS = 3_000;

export function JobPage({ id, tab }: { id: string; tab: string }) {
  const isIt = (hint: { subject: string | null }) => hint.subject === id;
  const [isLive, setLive] = useState(true);
  const often = isLive ? { on: isIt, everyMs: LIVE_MS } : { on: isIt };
  const job = useResource<Job>(`/coordinator/v1/jobs/${encodeURIComponent(id)}`, often);
  const curves = useResource<Curves>(`/v1/jobs/${encodeURIComponent(id)}/curves`, often);
  // A job that has ended changes no more; its last figures may be stored a moment later.
  const ended = job.data !== null && hasEnded(job.data);
  useEffect(() => {
    const timer = setTimeout(() => setLive(!ended), ended ? 4 * LIVE_MS : 0);
    return () => clearTimeout(timer);
  }, [ended]);
  return (
    <Page title={`Job ${shortId(id)}`} actions={<><Id id={id} label="job's id" />{job.data !== null && <Acts job={job.data} onDone={job.reload} />}<a class="button" href={href("training")}>All jobs</a></>}>
      <Loaded of={job} what="the job">{(one) => <Whole job={one} curves={curves} tab={tab} />}</Loaded>
    </Page>
  );
}

function Whole({ job, curves, tab }: { job: Job; curves: Resource<Curves>; tab: string }) {
  const tabs = [["", "Curves"], ["data", "Data"], ["request", "Request"]] as const;
  return (
    <>
      <State job={job} />
      <nav class="tabs" aria-label="Parts of the job">
        {tabs.map(([each, name]) => <a key={each} href={href("training", job.training_job_id, { tab: each })} aria-current={each === tab ? "page" : undefined}>{name}</a>)}
      </nav>
      {tab === "data" ? <Data job={job} /> : tab === "request" ? <Request job={job} /> : <Learning job={job} curves={curves} />}
    </>
  );
}

function Acts({ job, onDone }: { job: Job; onDone: () => void }) {
  const [isAsking, setAsking] = useState(false);
  if (hasEnded(job)) return <><Resume job={job} onDone={onDone} /><a class="button" href={href("training", { start: "1", again: job.training_job_id })}>Train again</a></>;
  const why = job.cancel_now ? "An end at once is asked for." : null;
  return (
    <>
      <ActButton scope="train" kind="danger" why={why} onClick={() => setAsking(true)}>{job.cancel_requested ? "Stop now" : "Cancel the job"}</ActButton>
      {isAsking && <Cancel job={job} isSecond={job.cancel_requested ?? false} onClose={() => setAsking(false)} onDone={onDone} />}
    </>
  );
}

/** A job that was cancelled, or failed, goes on from its newest checkpoint. */
function Resume({ job, onDone }: { job: Job; onDone: () => void }) {
  const [isSending, setSending] = useState(false);
  if (job.state === "completed") return null;
  const why = job.artifacts?.checkpoint == null ? "It has no checkpoint to go on from." : isSending ? "It is being asked for." : null;
  const resume = async () => {
    setSending(true);
    await act(job, "resume", "Resumed: its next attempt goes on from the checkpoint.", "Not resumed", onDone);
    setSending(false);
  };
  return <ActButton scope="train" kind="main" why={why} onClick={() => void resume()}>Resume</ActButton>;
}

async function act(job: Job, path: string, done: string, refused: string, onDone: () => void): Promise<boolean> {
  try {
    await post(`/coordinator/v1/jobs/${encodeURIComponent(job.training_job_id)}/${path}`, {});
    say(done);
    onDone();
    return true;
  } catch (error) {
    say(error instanceof ApiError ? `${refused}: ${error.message}` : String(error), "bad");
    return false;
  }
}

/** First the worker is asked to stop after its train step; once that is asked for, to end at once. */
function Cancel({ job, isSecond, onClose, onDone }: { job: Job; isSecond: boolean; onClose: () => void; onDone: () => void }) {
  const [isSending, setSending] = useState(false);
  const name = isSecond ? "Stop now" : "Cancel the job";
  const cancel = async () => {
    setSending(true);
    const done = !isActive(job) ? "Cancelled." : isSecond ? "Asked for: the worker ends the training at once." : "Asked for: the worker stops after its train step.";
    if (await act(job, isSecond ? "cancel?now=true" : "cancel", done, "Not cancelled", onDone)) onClose();
    else setSending(false);
  };
  return (
    <Dialog title={isSecond ? "Stop this job now?" : "Cancel this job?"} onClose={onClose}>
      <p>{!isActive(job)
        ? "It waits, and leaves the queue at once."
        : isSecond
          ? "The training ends without a further checkpoint: what it learned since the newest one is lost."
          : `Its worker is asked to stop. It does so after the present train step, keeps a checkpoint that "Resume" goes on from, and confirms it; a worker that is silent for ${LEASE_S} s loses the job all the same. What it has learned makes no policy.`}</p>
      <div class="buttons">
        <button type="button" class="button" onClick={onClose}>Let it go on</button>
        <button type="button" class="button danger" disabled={isSending} onClick={() => void cancel()}>{isSending ? "Asking…" : name}</button>
      </div>
    </Dialog>
  );
}

/** Where it is, and what is wrong with it. */
export function State({ job, title = "At a glance", actions }: { job: Job; title?: string; actions?: ComponentChildren }) {
  const now = useNow();
  const silent = heartbeatWarning(job, now);
  const took = tookSeconds(job, now);
  const stages = cancelStages(job, now);
  return (
    <>
      {silent !== null && <Banner tone="warn" title="The worker is silent"><p>{silent}</p></Banner>}
      {stages.length > 0 && (
        <ol class="stages" aria-label="The cancel">
          {stages.map((stage) => (
            <li key={stage.name} data-state={stage.state} aria-current={stage.state === "now" ? "step" : undefined}>
              <Icon name={stage.state === "done" ? "good" : stage.state === "now" ? "wait" : "dash"} />
              <div><b>{stage.name}</b><span class="muted small block"><DataText text={stage.text} /></span></div>
            </li>
          ))}
        </ol>
      )}
      {job.health_stop != null && (
        <Banner tone="warn" title={`Stopped at train step ${job.health_stop.step}: ${words(job.health_stop.figure)} was ${measure(job.health_stop.value)}, its limit is ${measure(job.health_stop.limit)}`}>
          <p><DataText text={job.health_stop.message ?? ""} /></p>
          <p class="muted">{job.health_stop.kept_step == null ? "No healthy weights were there to keep." : `The weights of train step ${job.health_stop.kept_step} were kept.`}</p>
        </Banner>
      )}
      {job.error != null && (
        <Banner tone={job.state === "failed" ? "bad" : "warn"} title={job.state === "failed" ? `Failed: ${job.error.code ?? "UNKNOWN"}` : `The last attempt failed: ${job.error.code ?? "UNKNOWN"}`}>
          <p class="wrap"><DataText text={job.error.message ?? ""} most={1000} /></p>
          {job.state === "queued" && <p class="muted">{job.retry_at == null ? "It waits for its next attempt, which goes on from the newest checkpoint." : <>The next attempt begins <Ago at={job.retry_at} />.</>}</p>}
          {job.error.traceback != null && <details><summary>Traceback</summary><pre class="quote"><DataText text={job.error.traceback} most={4000} /></pre></details>}
        </Banner>
      )}
      {(job.findings ?? []).map((finding) => <Banner key={finding} tone="info" title="The chat template and the data"><p><DataText text={finding} most={600} /></p></Banner>)}
      <Panel title={title} actions={actions}>
        <div class="row wide">
          <JobState job={job} now={now} />
          <Glance name="role"><DataText text={job.role} /></Glance>
          <Glance name="algorithm"><DataText text={job.algorithm} /></Glance>
          {job.trajectories != null && <Glance name="rows">{count(job.trajectories)}</Glance>}
          {took !== null && <Glance name={hasEnded(job) ? "took" : "runs for"}>{duration(took)}</Glance>}
          {job.worker != null && <Glance name="worker"><DataText text={job.worker} /></Glance>}
          {job.heartbeat_at != null && !hasEnded(job) && <Glance name="last heard"><Ago at={job.heartbeat_at} /></Glance>}
          {job.resumed_by != null && <Glance name="resumed by"><DataText text={job.resumed_by} most={60} /></Glance>}
          {job.parent != null && <Glance name="continues"><DataText text={job.parent} /></Glance>}
          <Glance name="asked for by"><DataText text={job.request.requester} most={60} /></Glance>
          <Glance name="asked for"><Ago at={job.created_at} /></Glance>
        </div>
        {!hasEnded(job) && <JobProgress job={job} />}
      </Panel>
    </>
  );
}

function Glance({ name, children }: { name: string; children: ComponentChildren }) {
  return <span class="glance"><span class="muted small">{name}</span> <b>{children}</b></span>;
}

function Learning({ job, curves }: { job: Job; curves: Resource<Curves> }) {
  return (
    <>
      <Loaded of={curves} what="the curves">{(answer) => (
        <>
          {answer.curves.length === 0
            ? <Panel title="Curves"><Empty>{hasEnded(job) ? "It ended before its first train step was reported." : "The first train step draws them."}</Empty></Panel>
            : <div class="grid stretch" style={{ "--least": "380px" }}>{inReadingOrder(answer.curves).map((curve) => <CurvePanel key={curve.name} curve={curve} />)}</div>}
          <Attempts attempts={answer.attempts} />
        </>
      )}</Loaded>
      <Made job={job} />
    </>
  );
}

function Attempts({ attempts }: { attempts: readonly Attempt[] }) {
  if (attempts.length === 0) return null;
  return (
    <Panel title="Attempts" flush>
      <Table caption="Attempts" rows={attempts} rowKey={(one) => one.number} columns={[
        { name: "Attempt", show: (one) => String(one.number) },
        { name: "State", show: (one) => <Status state={one.state} /> },
        { name: "Worker", show: (one) => <Short text={one.worker} /> },
        { name: "Began", show: (one) => <Ago at={one.began_at} /> },
        { name: "Ran", isNumber: true, show: (one) => duration(Math.max(0, (Date.parse(one.last_at) - Date.parse(one.began_at)) / 1000)) },
        { name: "Last train step", isNumber: true, show: (one) => count(one.last_step) },
        { name: "GPU hours", isNumber: true, show: (one) => measure(one.gpu_hours) },
        { name: "Memory", isNumber: true, show: (one) => (one.peak_memory_gb === null ? "–" : `${measure(one.peak_memory_gb)} GB`) },
        { name: "Error", show: (one) => (one.error === null ? <span class="muted">none</span> : <span class="wrap"><DataText text={one.error} most={160} /></span>) },
      ]} />
    </Panel>
  );
}

/** What the job made: its policy and what lies beside it, and where to read on. */
export function Made({ job }: { job: Job }) {
  const made = job.artifacts;
  const held = job.evaluation_results;
  if (job.attempt === 0) return null;
  return (
    <Panel title="What it made">
      <Facts rows={[
        ["Policy", made?.final_checkpoint == null ? null : <Uri uri={made.final_checkpoint} />],
        ["Kind", made?.kind == null ? null : words(made.kind)],
        ["Digest", made?.digest == null ? null : <Id id={made.digest} label="digest" />],
        ["Newest checkpoint", made?.checkpoint == null ? null : <><Uri uri={made.checkpoint} /> <span class="muted small">the next attempt goes on from it</span></>],
        ["Model card", made?.model_card == null ? null : <><Written job={job.training_job_id} what="card" /> <a href={href("policies", job.role)}>Policies of {job.role}</a></>],
        ["Curves", made?.training_curves == null ? null : <Uri uri={made.training_curves} />],
        ["TensorBoard logs", made?.tensorboard_logs == null ? null : <Uri uri={made.tensorboard_logs} />],
        ["Log", made?.final_checkpoint == null ? <code>ratchet logs --grep {job.training_job_id}</code> : <Written job={job.training_job_id} what="log" />],
        ["Held-out reward", held?.holdout_reward == null ? null : measure(held.holdout_reward)],
        ["Improvement over the start", held?.improvement_over_baseline == null ? null : improvement(held.improvement_over_baseline, held.benchmark_scores)],
        ...Object.entries(held?.benchmark_scores ?? {}).map(([name, value]) => [words(name), measure(value)] as const),
      ]} />
    </Panel>
  );
}

function improvement(value: number, scores: Readonly<Record<string, number>> | null | undefined) {
  const low = scores?.improvement_low, high = scores?.improvement_high;
  return low === undefined || high === undefined ? measure(value) : `${measure(value)} (95 % interval ${measure(low)} to ${measure(high)})`;
}

function Uri({ uri }: { uri: string }) {
  return <span class="row tight"><span class="id wrap"><DataText text={uri} /></span> <Id id={uri} label="address" shown="copy" /></span>;
}

function Request({ job }: { job: Job }) {
  const usage = job.resource_usage;
  return (
    <Panel title="What was asked for">
      <Facts rows={[
        ["Why", <DataText text={job.request.trigger_reason} />],
        ["Priority", job.priority],
        ["Offered as a candidate", job.request.offer === false ? "no" : null],
        ["Waited for a slot", duration(job.queue_wait_s ?? 0)],
        ["Attempts that no worker took", (job.unclaimed ?? 0) > 0 ? plural(job.unclaimed ?? 0, "attempt") : null],
        ["Time of all attempts", usage?.total_training_time_seconds == null ? null : duration(usage.total_training_time_seconds)],
        ["Cost", usage?.cost_usd == null ? null : `$${measure(usage.cost_usd)}`],
        ["Notes", job.request.metadata?.notes == null ? null : <DataText text={job.request.metadata.notes} most={600} />],
      ]} />
      <pre class="quote"><DataText text={JSON.stringify(job.request.training_config, (_, value: unknown) => (value === null ? undefined : value), 2)} most={6000} /></pre>
    </Panel>
  );
}
