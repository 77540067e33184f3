// A role's newest rollout: where it is, what it waits for, its evidence, and what a person may do.

import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { useResource } from "../../api/resource.ts";
import type { Hint, Rollout, RolloutHistory, Trail } from "../../api/types.ts";
import { duration, plural, share, words } from "../../format.ts";
import { href } from "../../route.ts";
import { navigate } from "../../router.ts";
import { Icon } from "../../ui/icons.tsx";
import { Empty, Facts, Figure, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Loaded } from "../../ui/resource.tsx";
import { ActButton } from "../../ui/scope.tsx";
import { Pill, Status } from "../../ui/status.tsx";
import { DataText, Id, PolicyName } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { ActDialog } from "./act.tsx";
import { Arms, Coverage, Differences, Evidence } from "./comparison.tsx";
import { ACTS, actsFor, complaintWords, costWords, ENDED, hadTraffic, rough, track, type Act, type Sample, type Step } from "./evidence.ts";
import { paths } from "./paths.ts";
import { AuditChain, BundleLink, Decisions, Failures, Gates, PastRollouts } from "./record.tsx";

const NONE: readonly Sample[] = [];

export function RolloutView({ role }: { role: string }) {
  const on = (hint: Hint) => hint.kind === "rollout" && (hint.role === null || hint.role === role);
  const newest = useResource<Rollout>(paths.newest(role), { on, everyMs: 10_000 });
  const id = newest.data?.rollout_id ?? null;
  const history = useResource<RolloutHistory>(id === null ? null : paths.history(role, id), { on, everyMs: 60_000 });
  const trail = useResource<Trail>(id === null ? null : paths.trail(role), { on, everyMs: 15_000 });
  const between = trail.data !== null && trail.data.rollout_id === id ? trail.data.samples : NONE;
  const [act, setAct] = useState<Act | null>(null);
  const isNone = newest.error?.status === 404;
  return (
    <Page title={`Rollout of ${role}`} actions={<Acts rollout={newest.data} onAct={setAct} />}>
      <nav aria-label="Where you are" class="small"><a href={href("rollouts")}>Rollouts</a> › <DataText text={role} /></nav>
      {isNone && <Panel title="Newest rollout"><Empty>There was no rollout of this role yet. Start one of its versions, if it has any.</Empty></Panel>}
      {!isNone && (
        <Loaded of={newest} what={`the rollout of ${role}`}>
          {(rollout) => <Whole rollout={rollout} history={history.data} between={between} historyError={history.error === null || history.error.status === 404 ? null : <Loaded of={history} what="the evidence over time">{() => null}</Loaded>} />}
        </Loaded>
      )}
      <AuditChain role={role} />
      <PastRollouts role={role} newest={id} />
      {act !== null && <ActDialog role={role} act={act} rollout={newest.data} onClose={() => setAct(null)} onDone={() => (setAct(null), newest.reload(), history.reload(), navigate(href("rollouts", role)))} />}
    </Page>
  );
}

function Acts({ rollout, onAct }: { rollout: Rollout | null; onAct: (act: Act) => void }) {
  const main: Readonly<Record<string, string>> = { approve: "main", resume: "main", rollback: "danger" };
  return (
    <div class="row" role="group" aria-label="Acts">
      {actsFor(rollout).map((act) => <ActButton key={act} scope="operate" kind={main[act] ?? ""} onClick={() => onAct(act)}>{ACTS[act].name}</ActButton>)}
    </div>
  );
}

function Whole({ rollout, history, between, historyError }: { rollout: Rollout; history: RolloutHistory | null; between: readonly Sample[]; historyError: ComponentChildren }) {
  const decisions = useMemo(() => history?.decisions ?? [], [history]);
  return (
    <>
      {rollout.fault != null && <Banner tone="bad" title="It cannot go on"><p><DataText text={rollout.fault} /></p></Banner>}
      {rollout.late != null && <Banner tone="warn" title="Outcomes come late"><p><DataText text={rollout.late} /></p></Banner>}
      {rollout.state === "suspended" && <Banner tone="bad" title="Suspended: a person has to decide"><p>Single trajectories went worse than stable's, which may be due to the {rollout.subjects.seen.toLocaleString("en")} subjects seen so far. Look at the trajectories with the lowest rewards, then resume it, promote it or roll it back; without a decision it is withdrawn.</p></Banner>}
      {rollout.parked && <Banner tone="warn" title="The queue is parked"><p>No candidate starts until somebody resumes the queue or starts one.</p></Banner>}
      {rollout.noticed.length > 0 && <Banner tone="warn" title="Put to a person">{rollout.noticed.map((one) => <p key={one}><DataText text={one} /></p>)}</Banner>}
      <Panel title={rollout.candidate.name} actions={<Status state={rollout.state} />}>
        <Track steps={track(rollout, decisions)} />
        <Head rollout={rollout} />
      </Panel>
      {rollout.gates.length > 0 && <Gates gates={rollout.gates} />}
      {historyError}
      {hadTraffic(rollout) && (
        <>
          <Evidence decisions={decisions} between={between} thresholds={rollout.thresholds} />
          <Differences differences={rollout.differences} />
          <div class="grid" style={{ "--least": "400px" }}>
            <Arms rollout={rollout} />
            <Coverage rollout={rollout} />
          </div>
          <Failures role={rollout.role} rollout={rollout.rollout_id} />
        </>
      )}
      {decisions.length > 0 && <Decisions decisions={decisions} />}
    </>
  );
}

function Track({ steps }: { steps: readonly Step[] }) {
  const icons = { done: "good", now: "run", stopped: "warn", ahead: "dash", failed: "bad" } as const;
  const spoken = { done: "done", now: "now", stopped: "stopped here", ahead: "ahead", failed: "ended here" } as const;
  return (
    <ol class="track" aria-label="Stages">
      {steps.map((step) => (
        <li key={step.name} data-state={step.state} aria-current={step.state === "now" || step.state === "stopped" ? "step" : undefined}>
          <span class="knot"><Icon name={icons[step.state]} size={12} /></span>
          <b>{step.name}</b>
          <span class="muted small">{step.detail}<span class="hidden">, {spoken[step.state]}</span></span>
        </li>
      ))}
    </ol>
  );
}

function Head({ rollout }: { rollout: Rollout }) {
  const isOver = ENDED.has(rollout.state);
  return (
    <div class="grid" style={{ "--least": "320px" }}>
      <div class="stack">
        <div class="figures">
          <Figure name="canary's share" value={share(rollout.weight)} />
          {rollout.forecast !== null && !isOver && <Figure name={`expected, at ${Math.round(rollout.forecast.subjects_per_day).toLocaleString("en")} subjects a day in ${Math.round(rollout.forecast.trajectories_per_day).toLocaleString("en")} trajectories (the rate of ${rollout.forecast.seen_in_s < 3600 ? "only " : ""}${duration(rollout.forecast.seen_in_s)})`} value={duration(rough(rollout.forecast.expected_days * 86_400))} />}
          {rollout.deadline_in_s !== null && <Figure name={rollout.state === "suspended" ? "until it is withdrawn" : "until a person must decide"} value={duration(rollout.deadline_in_s)} />}
        </div>
        {rollout.waiting_for.length > 0 && (
          <div>
            <h3>The {rollout.state === "soaking" ? "soak" : "stage"} still lacks</h3>
            <ul class="lacks">{rollout.waiting_for.map((one) => <li key={one}><Icon name="wait" size={12} /> <DataText text={one} /></li>)}</ul>
          </div>
        )}
        {rollout.waiting_for.length === 0 && rollout.state === "running" && <p><Pill tone="good" icon="good">Nothing is lacking</Pill> The next look moves it on.</p>}
      </div>
      <Facts rows={[
        ["Last decision", <DataText text={rollout.reason || "–"} most={600} />],
        ["Started by", <DataText text={rollout.actor} />],
        ["Beside", rollout.stable === null ? "nothing: the first policy of the role" : <PolicyName name={rollout.stable.name} />],
        ["Of calls", rollout.candidate.bundle !== true ? null : <BundleLink rollout={rollout} />],
        ["Next", rollout.queue === undefined || rollout.queue.length === 0 ? null : <Waiting queue={rollout.queue} />],
        ["Strategy", `${words(rollout.strategy)}, ${words(rollout.approval)}`],
        ["Began", <Ago at={rollout.created_at} />],
        ["Ended", rollout.finished_at === null ? null : <Ago at={rollout.finished_at} />],
        ["In this stage", rollout.stage_since === null || isOver ? null : duration(rollout.stage_age_s)],
        ["Subjects", !hadTraffic(rollout) ? null : <Subjects of={rollout.subjects} />],
        ["Not settled", isOver ? null : `${rollout.pending.toLocaleString("en")} trajectories`],
        ["An outcome is missing after", rollout.horizon == null ? null : <>{duration(rollout.horizon.seconds)} <span class="muted">(<DataText text={rollout.horizon.basis} />)</span></>],
        ["Cost", costWords(rollout) === null ? null : <DataText text={costWords(rollout) ?? ""} most={400} />],
        ["Complaints", complaintWords(rollout)],
        ["Rollout", <Id id={rollout.rollout_id} label="id of the rollout" />],
      ]} />
    </div>
  );
}

/** The candidates that wait for their turn. */
function Waiting({ queue: [next, ...older] }: { queue: readonly string[] }) {
  return (
    <>
      {next !== undefined && <PolicyName name={next} />} <span class="muted">waits until this rollout ends</span>
      {older.length > 0 && <span class="muted">, and then supersedes {plural(older.length, "older candidate")}</span>}
    </>
  );
}

/** Whose trajectories the evidence is about, and what they cannot show. */
function Subjects({ of }: { of: Rollout["subjects"] }) {
  return (
    <>
      {of.seen.toLocaleString("en")} seen
      {of.starts_before > 0 && <span class="muted">; before it {of.before.toLocaleString("en")} in {plural(of.starts_before, "start")}</span>}
      {of.split > 0 && <span class="muted">; {of.split.toLocaleString("en")} of them stood for many: their trajectories count one by one</span>}
      {of.note !== null && <span class="block"><Pill tone="warn" icon="warn" plain>few subjects</Pill> <DataText text={of.note} /></span>}
    </>
  );
}
