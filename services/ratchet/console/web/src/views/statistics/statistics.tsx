// Statistics: what trajectories and calls were like, in all, over time and by what they have in common.

import { useMemo, useState } from "preact/hooks";
import { useResource } from "../../api/resource.ts";
import { LineChart } from "../../charts/line.tsx";
import { count, dollars, duration, instant, plural, share } from "../../format.ts";
import { EndFields, OriginFields } from "../../parts/filters.tsx";
import { RoleSelect } from "../../parts/roles.tsx";
import { href, type Route } from "../../route.ts";
import { navigate } from "../../router.ts";
import { Select, TextField } from "../../ui/form.tsx";
import { Empty, Figure, Page, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText } from "../../ui/text.tsx";
import { askedOf, DIMENSIONS, FIGURES, figureOf, isDetailed, LINES, listOf, meanText, nameOf, pathOf, seriesOf, tokensOf, WITHIN, wrongWith, type Asked, type Group, type Measures, type Statistics } from "./query.ts";

export function StatisticsView({ route }: { route: Route }) {
  const asked = askedOf(route.params);
  const wrong = wrongWith(asked);
  const { figure, ...rest } = asked;
  const key = JSON.stringify(rest);
  const path = useMemo(() => (wrong === null ? pathOf(asked, Date.now()) : null), [key]);
  const answer = useResource<Statistics>(path);
  return (
    <Page title="Statistics" lead="How many trajectories ended, how, and what they were worth; how many calls they took, and what these cost.">
      <Form key={key} asked={asked} wrong={wrong} />
      {wrong === null && <Loaded of={answer} what="the statistics">{(made) => made.total.points.length === 0 ? <Nothing asked={asked} made={made} /> : <Whole asked={asked} made={made} />}</Loaded>}
    </Page>
  );
}

function Nothing({ asked, made }: { asked: Asked; made: Statistics }) {
  return (
    <Panel title="Nothing in this time">
      <Empty>
        <p>No trajectory ended and no call was made between {instant(made.since)} and {instant(made.until)}{isDetailed(asked) || asked.role !== "" ? " that is like that" : ""}.{made.evaluation ? "" : " Evaluations are left out."}</p>
        <p><a href={href("statistics", { within: "90d" })}>Look at the last 90 days</a></p>
      </Empty>
    </Panel>
  );
}

function Whole({ asked, made }: { asked: Asked; made: Statistics }) {
  return (
    <>
      <Panel title="In all"><Totals of={made.total} /></Panel>
      <OverTime asked={asked} made={made} />
      {made.by.length > 0 && <Groups asked={asked} made={made} />}
    </>
  );
}

function Totals({ of }: { of: Measures }) {
  return (
    <div class="figures small-figures">
      <Figure name="trajectories" value={count(of.trajectories)} />
      <Figure name={`success, of ${count(of.outcomes)} outcomes`} value={share(of.success_share)} />
      <Figure name={`mean reward, of ${count(of.rewarded)}`} value={meanText(of)} />
      <Figure name="calls" value={<>{count(of.calls)}{of.errors > 0 && <small class="bad"> {count(of.errors)} failed</small>}</>} />
      <Figure name="tokens in, out" value={`${count(of.prompt_tokens)}, ${count(of.completion_tokens)}`} />
      <Figure name={of.unpriced > 0 ? `cost; ${count(of.unpriced)} calls without a price` : "cost"} value={dollars(of.cost_usd)} />
      <Figure name="latency, p50 and p95" value={latencyText(of)} />
    </div>
  );
}

function latencyText(of: Measures): string {
  return of.latency_ms === null ? "–" : `${duration(of.latency_ms[0] / 1000)}, ${duration(of.latency_ms[1] / 1000)}`;
}

function OverTime({ asked, made }: { asked: Asked; made: Statistics }) {
  const figure = figureOf(asked.figure);
  const series = useMemo(() => seriesOf(made, figure), [made, figure]);
  const choose = (value: string) => navigate(href("statistics", { ...asked, figure: value }), { replace: true });
  const title = `${figure.title} by ${made.every}`;
  return (
    <Panel title={title} actions={<div class="choose"><Select label="Figure" value={asked.figure || "reward"} onValue={choose} options={Object.entries(FIGURES).map(([name, kind]) => [name, kind.title] as const)} /></div>}>
      {series.length === 0
        ? <p class="muted">{figure.title} is not known of anything in this time.</p>
        : <LineChart title={title} series={series} format={figure.format} height={240} xName={`The ${made.every} from`} />}
      <p class="muted small">
        {made.every === "hour" ? "Hours" : made.every === "day" ? "Days" : "Weeks, from Monday,"} are those of UTC; the first and the last one hold what lies in the window.
        {made.groups.length > LINES && ` The lines are those of the ${LINES} groups with the most trajectories.`}
      </p>
    </Panel>
  );
}

function Groups({ asked, made }: { asked: Asked; made: Statistics }) {
  const rows = made.other === null ? made.groups : [...made.groups, made.other];
  const title = `By ${made.by.map(labelOf).join(" and ")}`;
  const names = made.by.map(labelOf).join(", ");
  return (
    <Panel title={title} flush>
      <Table caption={title} rows={rows} rowKey={(group) => (group === made.other ? "other" : JSON.stringify(group.names))} columns={[
        { name: names.charAt(0).toUpperCase() + names.slice(1), show: (group) => <Name group={group} asked={asked} made={made} /> },
        { name: "Trajectories", isNumber: true, show: (group) => count(group.trajectories) },
        { name: "Success", isNumber: true, show: (group) => share(group.success_share) },
        { name: "Mean reward", isNumber: true, show: meanText },
        { name: "Calls", isNumber: true, show: (group) => count(group.calls) },
        { name: "Failed", isNumber: true, show: (group) => count(group.errors) },
        { name: "Tokens", isNumber: true, show: (group) => count(tokensOf(group)) },
        { name: "Cost", isNumber: true, show: (group) => (group.unpriced === group.calls ? "–" : dollars(group.cost_usd)) },
        { name: "p50, p95", isNumber: true, show: latencyText },
      ]} />
      <p class="muted small inset">± is half of the 95 % interval of the mean, as if trajectories were independent. Calls are those that were made in this time, trajectories those that ended.</p>
    </Panel>
  );
}

function Name({ group, asked, made }: { group: Group; asked: Asked; made: Statistics }) {
  if (group === made.other) return <span class="muted">{plural(made.others, "further group")} together</span>;
  const list = listOf(group, made, asked);
  const name = <span class="wrap"><DataText text={nameOf(group)} most={100} /></span>;
  return list === null || group.trajectories === 0 ? name : <a href={href("trajectories", list)} title="Its trajectories">{name}</a>;
}

const labelOf = (name: string) => (name === "api" ? "API" : name);
const OPTIONS = DIMENSIONS.map((name) => [name, labelOf(name)] as const);

function Form({ asked, wrong }: { asked: Asked; wrong: string | null }) {
  const [draft, setDraft] = useState(asked);
  const change = (name: keyof Asked) => (value: string) => setDraft({ ...draft, [name]: value });
  /** A choice is asked for at once, with what is typed already. */
  const choose = (name: keyof Asked) => (value: string) => navigate(href("statistics", { ...draft, ...(name === "by" && value === "" ? { and: "" } : {}), [name]: value }), { replace: true });
  const submit = (event: Event) => {
    event.preventDefault();
    navigate(href("statistics", { ...draft }));
  };
  return (
    <form class="search" onSubmit={submit}>
      <div class="fields">
        <Select label="Time" value={draft.within} onValue={choose("within")} options={WITHIN} />
        <RoleSelect value={draft.role} onValue={choose("role")} />
        <Select label="Group by" value={draft.by} onValue={choose("by")} options={[["", "nothing"], ...OPTIONS]} />
        {draft.by !== "" && <Select label="and by" value={draft.and} onValue={choose("and")} options={[["", "nothing else"], ...OPTIONS.filter(([name]) => name !== draft.by)]} />}
        <Select label="Over time, by" value={draft.every} onValue={choose("every")} options={[["", "what fits"], "hour", "day", "week"]} />
      </div>
      <details open={isDetailed(asked)}>
        <summary>Agent, domain, model, policy and more</summary>
        <div class="fields">
          <EndFields draft={draft} choose={choose} />
          <TextField label="Key" value={draft.key} onValue={change("key")} />
          <OriginFields draft={draft} change={change} />
        </div>
        <div class="row"><button type="submit" class="button main">Ask</button></div>
      </details>
      {wrong !== null && <p class="wrong" role="alert">{wrong}</p>}
    </form>
  );
}
