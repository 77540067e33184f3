// The home view: what needs a person now, the loop as it moves, every role, the last hour, services and streams.

import { useEffect } from "preact/hooks";
import { loop as streamed } from "../../api/live.ts";
import { useResource } from "../../api/resource.ts";
import type { Attention, Drift, Loop } from "../../api/types.ts";
import { Spark } from "../../charts/spark.tsx";
import { bytes, count, measure, plural, share } from "../../format.ts";
import { href, type Route } from "../../route.ts";
import { useStore } from "../../store.ts";
import { Icon } from "../../ui/icons.tsx";
import { Empty, Meter, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Failure, Loading } from "../../ui/resource.tsx";
import { Pill, Status } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, PolicyName, Short } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { actFor } from "./attention.ts";
import { lately, stations, type Station } from "./picture.ts";
import { Receivers } from "./receivers.tsx";

export function LoopView({ route }: { route: Route }) {
  const live = useStore(streamed);
  // Where the stream of events does not come through, asking does.
  const asked = useResource<Loop>("/v1/loop", { everyMs: 10_000 });
  const loop = newer(live, asked.data);
  const focus = route.params["focus"];
  useEffect(() => {
    const target = focus === undefined || loop === null ? null : document.getElementById(focus);
    target?.scrollIntoView({ block: "start", behavior: "smooth" });
    target?.focus({ preventScroll: true });
  }, [focus, loop === null]);
  return (
    <Page title="Loop" lead="Agents' calls become trajectories, trajectories get rewards, rewards train policies, and what proves itself serves the agents.">
      {asked.error !== null && <Failure error={asked.error} at={loop === null ? null : Date.parse(loop.at)} what="the loop's figures" onRetry={asked.reload} />}
      {loop === null ? asked.error === null && <Loading what="the loop's figures" /> : <Whole loop={loop} />}
    </Page>
  );
}

function newer(one: Loop | null, other: Loop | null): Loop | null {
  if (one === null || other === null) return one ?? other;
  return Date.parse(one.at) >= Date.parse(other.at) ? one : other;
}

function Whole({ loop }: { loop: Loop }) {
  return (
    <>
      {Object.entries(loop.unread).map(([part, why]) => (
        <Banner key={part} tone="warn" title={`Without ${part}: the figures that come from there are missing.`}><p><DataText text={why} /></p></Banner>
      ))}
      <NeedsYou attention={loop.attention} />
      <Picture loop={loop} />
      <Roles loop={loop} />
      <Hour loop={loop} />
      <Rewards />
      <Receivers />
      <div class="grid">
        <Services loop={loop} />
        <Streams loop={loop} />
      </div>
    </>
  );
}

function NeedsYou({ attention }: { attention: readonly Attention[] }) {
  return (
    <section aria-labelledby="needs" class="stack needs">
      <h2 id="needs" class={attention.length === 0 ? "hidden" : undefined}>Needs a person</h2>
      {attention.length === 0
        ? <p class="calm"><Pill tone="good" icon="good">All is well</Pill> <span class="muted">Nothing waits for a person.</span></p>
        : <ul class="stack" aria-live="polite">{attention.map((one) => <Need key={`${one.kind} ${one.role} ${one.subject} ${one.title}`} one={one} />)}</ul>}
    </section>
  );
}

function Need({ one }: { one: Attention }) {
  const act = actFor(one);
  const isAct = one.severity === "act";
  return (
    <li class="banner" data-tone={isAct ? "accent" : "warn"}>
      <Icon name={isAct ? "person" : "warn"} />
      <div>
        <strong><DataText text={one.title} /></strong>
        <p><DataText text={one.detail} most={600} /></p>
        <p class="small muted">{isAct ? "Waits for a person" : "Warning"}{one.role !== null && <> · role <DataText text={one.role} /></>}{one.since !== null && <> · since <Ago at={one.since} /></>}</p>
      </div>
      <a class={isAct ? "button main" : "button"} href={act.link}>{act.text}<span class="hidden">: {one.title}</span></a>
    </li>
  );
}

function Picture({ loop }: { loop: Loop }) {
  const all = stations(loop);
  return (
    <section aria-label="The loop now" class="ring">
      <ol>{all.map((station, place) => <StationCard key={station.name} station={station} place={place} next={all[(place + 1) % all.length]?.name ?? ""} />)}</ol>
    </section>
  );
}

/** Its arrow points to the next station, and moves as fast as messages do. */
function StationCard({ station, place, next }: { station: Station; place: number; next: string }) {
  const seconds = Math.max(0.6, 6 / Math.log2(2 + station.flow));
  return (
    <li class={`station at-${place}`}>
      <a href={station.link ?? "#/"}>
        <span class="row"><span class="sign" data-tone={station.tone}><Icon name={station.icon} /></span><b>{station.name}</b></span>
        <span class="value">{station.figure} <small>{station.unit}</small></span>
        <span class="muted small wrap"><DataText text={station.detail} most={80} /></span>
        <Pill tone={station.tone} plain icon={station.tone === "bad" ? "bad" : station.tone === "warn" ? "warn" : station.tone === "good" ? "good" : station.tone === "accent" ? "run" : "dash"}>{station.state}</Pill>
      </a>
      <svg class="arrow" viewBox="0 0 32 16" aria-hidden="true" data-moves={station.flow > 0 ? "" : undefined} style={{ "--seconds": `${seconds}s` }}>
        <path class="way" d="M1 8h28" />
        <path class="head" d="M24 3l6 5-6 5" />
      </svg>
      <span class="hidden">leads to {next}</span>
    </li>
  );
}

function Roles({ loop }: { loop: Loop }) {
  return (
    <Panel title="Roles" flush>
      {loop.roles.length === 0
        ? <Empty>No role yet: a first call through the gateway, or a first policy, makes one.</Empty>
        : <Table caption="Every role's place in the loop" rows={loop.roles} rowKey={(role) => role.role} columns={[
          { name: "Role", show: (role) => <a href={href("rollouts", role.role)}><DataText text={role.role} /></a> },
          { name: "Serves", show: (role) => role.stable === null ? <span class="muted">the upstream model</span> : <PolicyName name={role.stable} /> },
          { name: "Canary", show: (role) => role.canary === null ? <span class="muted">none</span> : <><PolicyName name={role.canary} /> {share(role.weight)}</> },
          { name: "Newest rollout", show: (role) => role.rollout === null ? <span class="muted">none yet</span> : <Status state={role.rollout} /> },
          { name: "Jobs", isNumber: true, show: (role) => count(role.active_jobs) },
          { name: "Towards the next training", show: (role) => <NextTraining role={role} /> },
        ]} />}
    </Panel>
  );
}

function NextTraining({ role }: { role: Loop["roles"][number] }) {
  const since = role.since_last_training;
  if (since === null) return <span class="muted">unknown</span>;
  if (role.threshold === null) return <>{count(since)} new rewards; starts by hand</>;
  return (
    <div class="progress">
      <Meter value={since / role.threshold} label={`Rewards towards the next training of ${role.role}`} />
      <span class="nowrap">{count(since)} of {count(role.threshold)}</span>
    </div>
  );
}

function Hour({ loop }: { loop: Loop }) {
  const now = lately(loop);
  const of = (pick: (minute: Loop["minutes"][number]) => number | null) => loop.minutes.slice(0, -1).map(pick);
  return (
    <Panel title="The last hour" id="hour">
      <div class="grid" style={{ "--least": "144px" }}>
        <Spark name="calls / min" value={measure(now.calls)} points={of((minute) => minute.calls)} low={0} />
        <Spark name="failed / min" value={measure(now.failed)} points={of((minute) => minute.failed_calls)} low={0} colour={6} />
        <Spark name="trajectories / min" value={measure(now.trajectories)} points={of((minute) => minute.trajectories)} low={0} colour={3} />
        <Spark name="rewards / min" value={measure(now.rewards)} points={of((minute) => minute.rewards)} low={0} colour={4} />
        <Spark name="mean reward" value={measure(now.mean)} points={of((minute) => minute.mean_reward)} colour={2} />
      </div>
    </Panel>
  );
}

/** Absent until a role has rewards to compare. */
function Rewards() {
  const drift = useResource<Drift>("/v1/drift", { on: (hint) => hint.kind === "alert", everyMs: 30_000 });
  const metrics = drift.data?.metrics ?? [];
  if (metrics.length === 0) return drift.error === null ? null : <Failure error={drift.error} at={null} what="what is watched in rewards" onRetry={drift.reload} />;
  return (
    <Panel title="Levels of rewards" id="drift" flush>
      <Table caption="What is watched in rewards for a change of its level" rows={metrics} rowKey={(one) => `${one.role} ${one.function} ${one.metric}`} columns={[
        { name: "Role", show: (one) => <DataText text={one.role} /> },
        { name: "Function", show: (one) => <Short text={one.function} /> },
        { name: "Metric", show: (one) => <DataText text={one.metric} /> },
        { name: "Mean", isNumber: true, show: (one) => measure(one.mean) },
        { name: "Trajectories", isNumber: true, show: (one) => count(one.trajectories) },
        { name: "Evidence of a change", show: (one) => <Meter value={Math.min(1, one.evidence)} label={`Evidence that ${one.metric} of ${one.role} has changed`} /> },
        { name: "Level", show: (one) => one.alert === null ? <Pill tone="good" icon="good" plain>as before</Pill> : <span class="wrap"><Pill tone="warn" icon="warn" plain>changed</Pill> <DataText text={one.alert} most={300} />{one.since !== null && <>, <Ago at={one.since} /></>}</span> },
      ]} />
    </Panel>
  );
}

function Services({ loop }: { loop: Loop }) {
  return (
    <Panel title="Services" id="services" flush>
      <Table caption="Services and their states" rows={loop.services} rowKey={(service) => service.name} columns={[
        { name: "Service", show: (service) => <DataText text={service.name} /> },
        { name: "State", show: (service) => <Status state={service.state} /> },
        { name: "Notes", show: (service) => <ServiceNotes service={service} /> },
      ]} />
    </Panel>
  );
}

function ServiceNotes({ service }: { service: Loop["services"][number] }) {
  const notes = Object.entries(service.notes);
  if (service.reason === null && notes.length === 0) return <span class="muted">none</span>;
  return (
    <div class="stack wrap">
      {service.reason !== null && <span><DataText text={service.reason} most={400} /></span>}
      {notes.map(([name, text]) => <span key={name}><b>{name}</b> <DataText text={text} most={400} /></span>)}
    </div>
  );
}

function Streams({ loop }: { loop: Loop }) {
  const consumers = loop.streams.flatMap((stream) => stream.consumers.map((consumer) => ({ ...consumer, stream: stream.name })));
  const size = loop.streams.reduce((sum, stream) => sum + stream.bytes, 0);
  return (
    <Panel title="Streams and ledger" id="streams" flush>
      <Table caption="Consumers" rows={consumers} rowKey={(one) => `${one.stream} ${one.name}`} columns={[
        { name: "Consumer", show: (one) => <DataText text={one.name} /> },
        { name: "Behind", isNumber: true, show: (one) => count(one.lag) },
        { name: "In work", isNumber: true, show: (one) => count(one.unacknowledged) },
        { name: "Again", isNumber: true, show: (one) => count(one.redelivered) },
      ]} />
      {loop.ledger.length > 0 && <Table caption="Ledger" rows={loop.ledger} rowKey={(row) => `${row.stream} ${row.consumer}`} columns={[
        { name: "Ledger of", show: (row) => <DataText text={row.consumer} /> },
        { name: "Stored", isNumber: true, show: (row) => count(row.stored) },
        { name: "Dead", isNumber: true, show: (row) => count(row.dead) },
        { name: "Twice", isNumber: true, show: (row) => count(row.duplicate) },
        { name: "Balance", show: (row) => <Balance row={row} /> },
      ]} />}
      <details class="folded">
        <summary>{plural(loop.streams.length, "stream")}, {bytes(size)}</summary>
        <Table caption="Streams" rows={loop.streams} rowKey={(stream) => stream.name} columns={[
          { name: "Stream", show: (stream) => <DataText text={stream.name} /> },
          { name: "Messages", isNumber: true, show: (stream) => count(stream.messages) },
          { name: "Size", isNumber: true, show: (stream) => bytes(stream.bytes) },
        ]} />
      </details>
    </Panel>
  );
}

function Balance({ row }: { row: Loop["ledger"][number] }) {
  const parts = [
    row.lost > 0 && `${plural(row.lost, "message")} lost`,
    row.missing > 0 && `${count(row.missing)} without an entry`,
    row.absent > 0 && `${count(row.absent)} without a row`,
  ].filter((part) => part !== false);
  return parts.length === 0 ? <Pill tone="good" icon="good" plain>balances</Pill> : <Pill tone="bad" icon="bad" plain>{parts.join(", ")}</Pill>;
}
