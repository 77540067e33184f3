// One trajectory: the conversation, what people think of it, its rewards, and what it can teach.

import { useResource, type Resource } from "../../api/resource.ts";
import type { ConsoleSchemas } from "../../api/types.ts";
import { count, dollars, duration, measure, plural, shortId } from "../../format.ts";
import { Conversation, CallLine } from "../../parts/conversation.tsx";
import { given, giver, textOf } from "../../parts/feedback.ts";
import { Rating } from "../../parts/rating.tsx";
import { PolicyOf, titleOf } from "../../parts/brief.tsx";
import { href } from "../../route.ts";
import { Empty, Facts, Meter, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Loaded } from "../../ui/resource.tsx";
import { Pill, Status } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, Id } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { componentsOf, functionName, hasEvidence, revisionOf, revisionText, type Reward } from "./rewards.ts";

type Trajectory = ConsoleSchemas["TrajectoryOut"];

export function TrajectoryPage({ id, role, from }: { id: string; role: string | null; from: number }) {
  const asked = new URLSearchParams({ ...(role === null ? {} : { role }), ...(from > 0 ? { first_message: String(from) } : {}) }).toString();
  const base = `/v1/trajectories/${encodeURIComponent(id)}`;
  const one = useResource<Trajectory>(`${base}${asked === "" ? "" : `?${asked}`}`, { on: (hint) => hint.subject === id });
  const whole = (index: number) => `${base}/messages/${index}${role === null ? "" : `?role=${encodeURIComponent(role)}`}`;
  return (
    <Page title={`Trajectory ${one.data === null ? shortId(id) : titleOf(one.data.brief)}`} actions={<><Id id={id} label="trajectory's id" /><a class="button" href={href("trajectories", { role })}>All trajectories</a></>}>
      <Loaded of={one} what="the trajectory">{(trajectory) => <Whole of={trajectory} resource={one} whole={whole} />}</Loaded>
    </Page>
  );
}

function Whole({ of, resource, whole }: { of: Trajectory; resource: Resource<Trajectory>; whole: (index: number) => string }) {
  const answer = of.messages.filter((message) => message.role === "assistant").at(-1)?.text ?? "";
  return (
    <>
      <Head of={of} />
      {of.error !== null && <Banner tone="bad" title="The agent reported an error"><p><DataText text={of.error} most={1000} /></p></Banner>}
      {of.unreadable !== null && <Banner tone="warn" title="This is no conversation: each call's messages follow one after the other."><p><DataText text={of.unreadable} most={600} /></p></Banner>}
      <div class="split">
        <Panel title="Conversation">
          <Pages of={of} />
          {of.messages.length === 0 ? <Empty>No message is stored yet.</Empty> : <Conversation messages={of.messages} calls={of.calls} whole={whole} />}
          <Pages of={of} />
        </Panel>
        <div class="stack side-panels">
          <Panel title="Your opinion"><Rating of={of.brief} feedback={of.feedback} answer={answer} onGiven={resource.reload} /></Panel>
          <Rewards rewards={of.rewards} />
          <Teaches of={of} />
          <Opinions of={of} />
          <Run of={of} />
          <Reported of={of} />
        </div>
      </div>
      <OtherCalls of={of} />
    </>
  );
}

function Head({ of: { brief, calls } }: { of: Trajectory }) {
  const tokens = calls.reduce((sum, call) => sum + (call.completion_tokens ?? 0), 0);
  const cost = calls.reduce((sum, call) => sum + (call.cost_usd ?? 0), 0);
  return (
    <Panel title="At a glance">
      <div class="row wide">
        <span class="row">{brief.outcome === null ? <Status state={brief.state} /> : <Status state={brief.outcome} />}</span>
        <Glance name="role"><DataText text={brief.role} /></Glance>
        <Glance name="agent"><DataText text={brief.agent_id} most={60} /></Glance>
        <Glance name="answered by"><PolicyOf brief={brief} /></Glance>
        {brief.model !== null && brief.policy?.endsWith("@0") !== true && <Glance name="model"><DataText text={brief.model} most={60} /></Glance>}
        <Glance name="reward">{brief.reward === null ? "none" : measure(brief.reward)}</Glance>
        <Glance name="calls">{count(brief.calls)}{brief.failed_calls > 0 && <span class="bad"> ({count(brief.failed_calls)} failed)</span>}</Glance>
        {tokens > 0 && <Glance name="tokens written">{count(tokens)}</Glance>}
        {cost > 0 && <Glance name="cost">{dollars(cost)}</Glance>}
        {brief.latency_ms !== null && <Glance name="time in calls">{duration(brief.latency_ms / 1000)}</Glance>}
        <Glance name={brief.ended_at === null ? "began" : "ended"}><Ago at={brief.ended_at ?? brief.started_at} /></Glance>
      </div>
    </Panel>
  );
}

function Glance({ name, children }: { name: string; children: preact.ComponentChildren }) {
  return <span class="glance"><span class="muted small">{name}</span> <b>{children}</b></span>;
}

/** A long conversation comes in parts. */
function Pages({ of }: { of: Trajectory }) {
  const first = of.messages[0]?.index ?? 0;
  const end = first + of.messages.length;
  if (first === 0 && end >= of.messages_total) return null;
  const part = (from: number) => href("trajectories", of.brief.trajectory_id, { role: of.brief.role, from });
  return (
    <nav class="row" aria-label="Parts of the conversation">
      <span class="muted small">Messages {count(first + 1)} to {count(end)} of {count(of.messages_total)}</span>
      {first > 0 && <a class="button small" href={part(Math.max(0, first - 500))}>Earlier</a>}
      {end < of.messages_total && <a class="button small" href={part(end)}>Later</a>}
    </nav>
  );
}

function Rewards({ rewards }: { rewards: readonly Reward[] }) {
  const last = rewards.at(-1);
  if (last === undefined) return <Panel title="Reward"><p class="muted">None yet: it is computed once the trajectory has ended.</p></Panel>;
  return (
    <Panel title="Reward" actions={<span class="muted small"><DataText text={functionName(last)} /></span>}>
      <p class="row">
        <b class="big">{measure(last.total_reward)}</b>
        {!hasEvidence(last) && <Pill tone="warn" icon="warn">nothing was known to judge by</Pill>}
      </p>
      <ul class="stack">
        {componentsOf(last).map((part) => (
          <li key={part.name} class="component">
            <div class="row"><b><DataText text={part.name} /></b><span class="muted small"><DataText text={part.weight} />, by {part.source}</span></div>
            {part.score !== null && <div class="progress"><Meter value={part.score} label={part.name} /><span>{measure(part.score)}</span></div>}
            {part.why !== null && <p class="small wrap"><DataText text={part.why} most={400} /></p>}
          </li>
        ))}
      </ul>
      {rewards.length > 1 && (
        <>
          <h3>Revisions</h3>
          <ol class="stack">
            {rewards.map((reward, at) => (
              <li key={reward.reward_id} class="small wrap">
                <b>{revisionOf(reward)}</b>: {measure(reward.total_reward)}, <Ago at={reward.timestamp} />
                {" "}<span class="muted"><DataText text={revisionText(reward, rewards[at - 1]) ?? "the first"} /></span>
              </li>
            ))}
          </ol>
        </>
      )}
    </Panel>
  );
}

/** Whether policy gradients may learn from it; reasons with what to change. */
function Teaches({ of }: { of: Trajectory }) {
  const learning = of.calls.filter((call) => call.learns).length;
  const word = of.calls.length === 0 ? null : learning === of.calls.length ? "all calls learn" : learning === 0 ? "no call learns" : `${learning} of ${of.calls.length} calls learn`;
  return (
    <Panel title="What it teaches">
      {word !== null && <p><Pill tone={learning === 0 ? "warn" : "good"} icon={learning === 0 ? "warn" : "good"}>{word}</Pill></p>}
      {of.reasons.length === 0 && (
        <p class="muted">{learning > 0
          ? of.brief.reward === null ? "Policy gradients may learn from it once it has a reward." : "Policy gradients may learn from it, by its reward."
          : of.calls.length === 0 ? "None of its calls is stored." : "Its calls do not go to policy gradients."} Imitation and preferences need no tokens.</p>
      )}
      {of.reasons.map((reason) => (
        <div key={reason.reason} class="stack reason">
          <div class="row"><b class="mono"><DataText text={reason.reason} /></b><span class="muted small">{plural(reason.calls, "call")}</span></div>
          <p class="small wrap"><DataText text={reason.meaning} /></p>
          <p class="small wrap"><b>Remedy:</b> <DataText text={reason.remedy} /></p>
        </div>
      ))}
    </Panel>
  );
}

function Opinions({ of }: { of: Trajectory }) {
  return (
    <Panel title="Feedback">
      {of.feedback.length === 0 ? <p class="muted">None yet.</p> : (
        <ol class="stack">
          {[...of.feedback].reverse().map((one) => (
            <li key={one.feedback_id} class="small">
              <b>{given(one.kind, one.value)}</b> <span class="muted">by <DataText text={giver(one)} most={80} />, <Ago at={one.at} /></span>
              {textOf(one) !== null && <p class="quote"><DataText text={textOf(one) ?? ""} most={600} /></p>}
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}

/** The tree of trajectories that this one belongs to: those of an agent and of the agents that it called. */
function Run({ of }: { of: Trajectory }) {
  if (of.run.length === 0) return null;
  return (
    <Panel title="Trajectories that belong together">
      <ul class="tree">
        {of.run.map((part) => {
          const name = <><DataText text={part.agent_id} most={40} /> <span class="muted">{part.role}, {plural(part.calls, "call")}</span></>;
          return (
            <li key={`${part.role} ${part.trajectory_id}`} style={{ "--depth": Math.min(part.depth, 12) }}>
              {part.trajectory_id === of.brief.trajectory_id && part.role === of.brief.role ? <b aria-current="true">{name}</b> : <a href={href("trajectories", part.trajectory_id, { role: part.role })}>{name}</a>}
              {part.outcome !== null && <> <Status state={part.outcome} plain /></>}
            </li>
          );
        })}
      </ul>
    </Panel>
  );
}

function Reported({ of }: { of: Trajectory }) {
  if (of.task === null && of.outcome === null) return null;
  return (
    <Panel title="As the agent reported it">
      <Facts rows={[
        ["Task", of.task === null ? null : <pre class="quote"><DataText text={JSON.stringify(of.task, null, 2)} most={600} /></pre>],
        ["Outcome", of.outcome === null ? null : <pre class="quote"><DataText text={JSON.stringify(of.outcome, null, 2)} most={600} /></pre>],
        ["Source", of.brief.source],
      ]} />
    </Panel>
  );
}

/** Calls whose answers stand in no message of this page: failed ones, side conversations, those of later parts. */
function OtherCalls({ of }: { of: Trajectory }) {
  const shown = new Set(of.messages.map((message) => message.turn_id));
  const others = of.calls.filter((call) => !shown.has(call.turn_id));
  if (others.length === 0) return null;
  return (
    <Panel title={`Calls without a message here (${count(others.length)})`} flush>
      <Table caption="Calls without a message here" rows={others} rowKey={(call) => call.turn_id} columns={[
        { name: "Call", show: (call) => count(call.index + 1) },
        { name: "When", show: (call) => <Ago at={call.at} /> },
        { name: "What it did", show: (call) => <CallLine call={call} /> },
      ]} />
    </Panel>
  );
}
