// What to change: patterns by what they cost, each with its plan; and on one page all of a pattern, from its evidence
// to the effect of what was changed because of it.

import { useState } from "preact/hooks";
import { post } from "../../api/client.ts";
import { useResource } from "../../api/resource.ts";
import type { AnalystSchemas } from "../../api/types.ts";
import { Spark } from "../../charts/spark.tsx";
import { share, shortId, words } from "../../format.ts";
import { href, type Route } from "../../route.ts";
import { navigate } from "../../router.ts";
import { say } from "../../ui/announce.tsx";
import { Dialog } from "../../ui/dialog.tsx";
import { Select, TextArea } from "../../ui/form.tsx";
import { LongText } from "../../ui/long_text.tsx";
import { Empty, Facts, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Loaded } from "../../ui/resource.tsx";
import { ActButton } from "../../ui/scope.tsx";
import { Status } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, PolicyName } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { Parts } from "../policies/bundle.tsx";
import { costOf, effectText, promiseText, toneOf, trailOf, triggersText, withPlans, type LearningEvent, type Pattern, type Plan } from "./learning.ts";

const EVERY_MS = 10_000;
const API = "/analyst/v1";
const ACTS: Readonly<Record<string, readonly string[]>> = { draft: ["approve", "reject"], approved: ["reject"], open: ["dismiss"], closed: ["dismiss"], dismissed: ["reopen"] };

interface Act { readonly name: string; readonly path: string }

export function ChangesView({ route }: { route: Route }) {
  const [, role, id] = route.parts;
  return role === undefined || id === undefined ? <PatternList state={route.params["state"] ?? "open"} /> : <PatternPage key={id} role={role} id={id} />;
}

function place(role: string, kind: string, id: string): string {
  return `${API}/${kind}/${encodeURIComponent(role)}/${encodeURIComponent(id)}`;
}

function PatternList({ state }: { state: string }) {
  const patterns = useResource<{ patterns: Pattern[] }>(`${API}/patterns?state=${encodeURIComponent(state)}`, { everyMs: EVERY_MS });
  const plans = useResource<{ plans: Plan[] }>(`${API}/plans`, { everyMs: EVERY_MS });
  return (
    <Page title="What to change" lead="What agents do wrong, or otherwise than before; what is planned because of it; and whether that helped.">
      <div class="fields"><Select label="Patterns" value={state} onValue={(chosen) => navigate(href("changes", { state: chosen }))} options={["open", "closed", "dismissed"]} /></div>
      <Panel title="The dearest first" flush>
        <Loaded of={patterns} what="the patterns">{(answer) => answer.patterns.length === 0
          ? <Empty><p>No pattern is here. One opens once two windows of time show it; <code>ratchet analyze ROLE</code> looks now.</p></Empty>
          : <Table caption="Patterns" rows={withPlans(answer.patterns, plans.data?.plans ?? [])} rowKey={({ pattern }) => pattern.role + pattern.pattern_id} columns={[
            { name: "Pattern", show: ({ pattern }) => <><a href={href("changes", pattern.role, pattern.pattern_id)}><DataText text={pattern.statement} most={160} /></a> <span class="muted small"><DataText text={pattern.role} />, {words(pattern.focus_area)}</span></> },
            { name: "Costs", isNumber: true, show: ({ pattern }) => costOf(pattern) },
            { name: "Share", show: ({ pattern }) => <Trend of={pattern} /> },
            { name: "Stability", isNumber: true, show: ({ pattern }) => pattern.confidence == null ? "–" : share(pattern.confidence) },
            { name: "Plan", show: ({ pattern, plan }) => plan === null ? words(pattern.action ?? "note") : <><DataText text={plan.change.summary} most={80} /> <Status state={plan.state ?? "draft"} /></> },
          ]} />}</Loaded>
      </Panel>
    </Page>
  );
}

function Trend({ of }: { of: Pattern }) {
  return <Spark name="of trajectories" over="by window" value={share(of.share)} points={of.trend ?? []} low={0} />;
}

function PatternPage({ role, id }: { role: string; id: string }) {
  const path = place(role, "patterns", id);
  const one = useResource<{ pattern: Pattern; plans: Plan[] }>(path, { everyMs: EVERY_MS });
  const trail = useResource<{ events: LearningEvent[] }>(`${API}/learning/${encodeURIComponent(role)}/events?pattern_id=${encodeURIComponent(id)}`);
  const [act, setAct] = useState<Act | null>(null);
  const acts = (of: string, state: string) => (ACTS[state] ?? []).map((name) => <ActButton key={name} scope="operate" onClick={() => setAct({ name, path: of })}>{named(name)}</ActButton>);
  return (
    <Page title="Pattern" actions={<a class="button" href={href("changes")}>All patterns</a>}>
      <Loaded of={one} what="the pattern">{({ pattern, plans }) => (
        <>
          <Panel title="Evidence" actions={acts(path, pattern.state ?? "open")}><Evidence of={pattern} /></Panel>
          {plans.length === 0 && <Panel title="Plan"><Empty>None was made.</Empty></Panel>}
          {plans.map((plan) => (
            <Panel key={plan.plan_id} title={`Plan ${shortId(plan.plan_id)}`} actions={acts(place(role, "plans", plan.plan_id), plan.state ?? "draft")}>
              {plan.verdict != null && <Banner tone={toneOf(plan)} title={plan.verdict} />}
              <PlanFacts of={plan} path={place(role, "plans", plan.plan_id)} />
              {plan.change.bundle != null ? <Parts bundle={plan.change.bundle} /> : <Written of={plan.change} />}
            </Panel>
          ))}
          <Panel title="Trail" flush>
            <Loaded of={trail} what="the trail">{({ events }) => (
              <Table caption="Trail" rows={trailOf(pattern, plans, events)} rowKey={(_, at) => at} columns={[
                { name: "Step", show: (step) => step.name },
                { name: "What happened", show: (step) => <DataText text={step.text} most={400} /> },
                { name: "When", show: (step) => <Ago at={step.at} /> },
              ]} />
            )}</Loaded>
          </Panel>
          {act !== null && <Decide act={act} onClose={() => setAct(null)} onDone={() => (one.reload(), trail.reload())} />}
        </>
      )}</Loaded>
    </Page>
  );
}

function Evidence({ of }: { of: Pattern }) {
  const { effect } = of;
  return (
    <>
      <p><DataText text={of.statement} /></p>
      <Facts rows={[
        ["State", <><Status state={of.state ?? "open"} /> <DataText text={[of.closed_by, of.reason].filter((each) => each != null).join(": ")} /></>],
        ["Kind", `${words(of.kind)}, ${words(of.finding)}; about ${words(of.focus_area)}`],
        ["Holds of", <DataText text={triggersText(of)} most={400} />],
        ["Effect", effectText(effect.measure, effect.value, effect)],
        ["Costs", costOf(of)],
        ["Reaches", <Trend of={of} />],
        ["Stability", of.confidence == null ? "an alert opened it, and no windows tested it" : `${share(of.confidence)} of resamples show it`],
        ["Seen", <><Ago at={of.seen_at} />, first <Ago at={of.opened_at} /></>],
        ["Advice", <DataText text={of.advice} />],
        ["Trajectories", <Trajectories ids={of.evidence ?? []} role={of.role} />],
      ]} />
    </>
  );
}

function Trajectories({ ids, role }: { ids: readonly string[]; role: string }) {
  return <>{ids.map((each) => <a key={each} class="id nowrap" href={href("trajectories", each, { role })}>{shortId(each)} </a>)}</>;
}

function PlanFacts({ of, path }: { of: Plan; path: string }) {
  const { expected, effect } = of;
  const waits = useResource<AnalystSchemas["PlanOut"]>(path, { everyMs: EVERY_MS }).data?.waits_for;
  return (
    <Facts rows={[
      ["State", <Status state={of.state ?? "draft"} />],
      ["Waits for", waits == null ? null : <DataText text={waits} />],
      ["Change", <DataText text={of.change.summary} />],
      ["Risk", of.risk],
      ["Promises", promiseText(expected)],
      ["Effect", effect == null ? "not measured" : `${effectText(expected.measure, effect.difference, effect)}, of ${effect.canary} in canary and ${effect.stable} in stable`],
      ["Held-out tasks of", of.change.tasks == null ? null : <Trajectories ids={of.change.tasks} role={of.role} />],
      ["Succeeds when", <DataText text={of.success_metrics.join("; ")} />],
      ["Taken back when", <DataText text={of.rollback_criteria.join("; ")} />],
      ["Policy", of.policy == null ? null : <a href={href("rollouts", of.role)}><PolicyName name={of.policy} /></a>],
      ["Training", of.job_id == null ? null : <a class="id" href={href("training", of.job_id)}>{shortId(of.job_id)}</a>],
    ]} />
  );
}

/** A change that is no bundle. */
function Written({ of }: { of: Plan["change"] }) {
  const text = of.training ?? of.component;
  return text == null ? null : <pre class="quote"><LongText text={JSON.stringify(text, null, 1)} /></pre>;
}

function Decide({ act, onClose, onDone }: { act: Act; onClose: () => void; onDone: () => void }) {
  const [reason, setReason] = useState("");
  const [wrong, setWrong] = useState<string | null>(null);
  const given = reason.trim();
  const send = async () => {
    if (["dismiss", "reject"].includes(act.name) && given === "") return setWrong("Give a reason first: it is part of the record.");
    await post(`${act.path}/${act.name}`, given === "" ? {} : { reason: given }).then(() => {
      say(`${named(act.name)}: done`);
      onDone();
      onClose();
    }, (error: unknown) => setWrong(String(error)));
  };
  return (
    <Dialog title={named(act.name)} onClose={onClose}>
      <TextArea label="Reason" maxLength={400} value={reason} onValue={setReason} wrong={wrong} hint="It stands in the trail beside your name." />
      <div class="buttons">
        <button type="button" class="button" onClick={onClose}>Cancel</button>
        <button type="button" class="button main" onClick={() => void send()}>{named(act.name)} now</button>
      </div>
    </Dialog>
  );
}

function named(act: string): string {
  return act[0]?.toUpperCase() + act.slice(1);
}
