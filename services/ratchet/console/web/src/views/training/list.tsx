// The jobs: those that run first; choose two to compare them.

import { useState } from "preact/hooks";
import { useResource } from "../../api/resource.ts";
import type { CoordinatorSchemas } from "../../api/types.ts";
import { count, duration, plural } from "../../format.ts";
import { JobTable } from "../../parts/job_list.tsx";
import { inOrder, isActive, type Job } from "../../parts/jobs.ts";
import { RoleSelect } from "../../parts/roles.tsx";
import { href, type Route } from "../../route.ts";
import { navigate } from "../../router.ts";
import { Select } from "../../ui/form.tsx";
import { Empty, Figure, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Loaded } from "../../ui/resource.tsx";

type Jobs = CoordinatorSchemas["JobsOut"];
type Status = CoordinatorSchemas["TrainingStatusOut"];

const PAGE = 100;
const STATES = ["queued", "dispatched", "running", "completed", "failed", "cancelled"] as const;

export function JobList({ route }: { route: Route }) {
  const { role = "", state = "", algorithm = "", offset = "0" } = route.params;
  const asked = new URLSearchParams({ limit: String(PAGE), offset, ...(role && { role }), ...(state && { state }), ...(algorithm && { algorithm }) });
  const jobs = useResource<Jobs>(`/coordinator/v1/jobs?${asked}`, { on: (hint) => hint.kind === "job", everyMs: 10_000 });
  const status = useResource<Status>("/coordinator/v1/status/training", { on: (hint) => hint.kind === "job", everyMs: 10_000 });
  const filter = (change: Record<string, string>) => navigate(href("training", { role, state, algorithm, ...change }), { replace: true });
  const known = status.data?.algorithms ?? (algorithm === "" ? [] : [algorithm]);
  return (
    <Page title="Training" lead="Jobs that make policies out of trajectories, preferences and thumbs."
      actions={<a class="button main" href={href("training", { start: "1", role })}>Start a training</a>}>
      {status.data !== null && <Summary status={status.data} />}
      <div class="fields">
        <RoleSelect value={role} onValue={(value) => filter({ role: value })} />
        <Select label="State" value={state} onValue={(value) => filter({ state: value })} options={[["", "all states"], ...STATES]} />
        <Select label="Algorithm" value={algorithm} onValue={(value) => filter({ algorithm: value })} options={[["", "all algorithms"], ...known]} />
      </div>
      <Loaded of={jobs} what="the jobs">{(answer) => <Shown answer={answer} offset={Number(offset) || 0} filters={{ role, state, algorithm }} />}</Loaded>
    </Page>
  );
}

function Summary({ status }: { status: Status }) {
  const slots = Object.values(status.slots);
  const [used, total] = [slots.reduce((sum, one) => sum + one.used, 0), slots.reduce((sum, one) => sum + one.total, 0)];
  return (
    <>
      {!status.training_enabled && <Banner tone="info" title="Training is disabled here"><p>The coordinator takes no jobs: <code>RATCHET_COORDINATOR_TRAINING_ENABLED</code>.</p></Banner>}
      <div class="figures">
        <Figure name="run" value={count(status.active.length)} />
        <Figure name="wait" value={count(status.waiting.length)} />
        <Figure name="slots in use" value={`${used} of ${total}`} />
        {status.longest_wait_s > 0 && <Figure name="longest wait for a slot" value={duration(status.longest_wait_s)} />}
        <Figure name="completed" value={count(status.jobs["completed"] ?? 0)} />
        <Figure name="failed" value={count(status.jobs["failed"] ?? 0)} />
      </div>
    </>
  );
}

function Shown({ answer, offset, filters }: { answer: Jobs; offset: number; filters: Record<string, string> }) {
  const [chosen, setChosen] = useState<readonly string[]>([]);
  const jobs = inOrder(answer.jobs);
  const toggle = (id: string, isIn: boolean) => setChosen(isIn ? [...chosen, id].slice(-2) : chosen.filter((one) => one !== id));
  const tick = (job: Job) => (
    <input type="checkbox" aria-label={`Compare job ${job.training_job_id}`} checked={chosen.includes(job.training_job_id)}
      onChange={(event) => toggle(job.training_job_id, event.currentTarget.checked)} />
  );
  const [one, other] = chosen;
  const compare = one !== undefined && other !== undefined
    ? <a class="button small" href={href("training", { one, other })}>Compare these two</a>
    : <span class="muted small">{chosen.length === 1 ? "Tick one more to compare" : "Tick two to compare"}</span>;
  if (jobs.length === 0) return <Panel title="Jobs"><Empty>{Object.values(filters).some(Boolean) ? "No job is like that." : "No job yet: start one, or wait for enough new rewards."}</Empty></Panel>;
  const end = offset + jobs.length;
  return (
    <Panel title={jobs.some(isActive) ? "Jobs, those that run first" : "Jobs"} flush actions={compare}>
      <JobTable caption="Training jobs" jobs={jobs} chosen={tick} />
      <nav class="pages row" aria-label="Pages">
        {offset > 0 && <a class="button" href={href("training", { ...filters, offset: Math.max(0, offset - PAGE) || null })}>Newer</a>}
        {end < answer.total && <a class="button" href={href("training", { ...filters, offset: end })}>Older</a>}
        <span class="muted small">{plural(answer.total, "job")} in all</span>
      </nav>
    </Panel>
  );
}
