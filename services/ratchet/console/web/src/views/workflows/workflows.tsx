// Workflows: those of the last day, or one of them with its graph, costs and outputs.

import { post } from "../../api/client.ts";
import { useResource } from "../../api/resource.ts";
import type { WorkflowsSchemas } from "../../api/types.ts";
import { dollars, duration, measure, share, shortId, words } from "../../format.ts";
import { href, type Route } from "../../route.ts";
import { say } from "../../ui/announce.tsx";
import { LongText } from "../../ui/long_text.tsx";
import { Empty, Facts, Meter, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Loaded } from "../../ui/resource.tsx";
import { ActButton } from "../../ui/scope.tsx";
import { Status } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, Id, PolicyName } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { BOX, draw, inWords, isOver, used, type Workflow } from "./graph.ts";

type Workflows = WorkflowsSchemas["WorkflowsOut"];
type SubTask = NonNullable<Workflow["plan"]>["sub_tasks"][number];

const FOLLOWED_MS = 1_000;
const LISTED_MS = 3_000;
const LINE = 26;
/** Letters of a line in a box. */

export function WorkflowsView({ route }: { route: Route }) {
  const id = route.parts[1];
  return id === undefined ? <WorkflowList /> : <WorkflowPage key={id} id={id} />;
}

function WorkflowList() {
  const all = useResource<Workflows>("/workflows/v1/workflows", { everyMs: LISTED_MS });
  return (
    <Page title="Workflows" lead="Instructions as graphs of sub-tasks: a planner splits them and chooses who does what. These are those of the last day.">
      <Panel title="Newest first" flush>
        <Loaded of={all} what="the workflows">{({ workflows }) => workflows.length === 0
          ? <Empty><p>No workflow ran in the last day.</p><p><code>ratchet workflows run INSTRUCTION</code> runs one.</p></Empty>
          : <Table caption="Workflows" rows={workflows} rowKey={(each) => each.workflow_id} columns={[
            { name: "Instruction", show: (each) => <a href={href("workflows", each.workflow_id)}><DataText text={each.instruction.slice(0, 80)} /></a> },
            { name: "State", show: (each) => <Status state={each.state} /> },
            { name: "Planner", show: (each) => <Planner of={each} /> },
            { name: "Cost", isNumber: true, show: (each) => `${dollars(each.cost_usd)} of ${dollars(each.budget_usd)}` },
            { name: "Begun", show: (each) => <Ago at={each.created_at} /> },
          ]} />}</Loaded>
      </Panel>
    </Page>
  );
}

function WorkflowPage({ id }: { id: string }) {
  const one = useResource<Workflow>(`/workflows/v1/workflows/${encodeURIComponent(id)}`, { everyMs: FOLLOWED_MS });
  const cancel = async () => {
    await post(`/workflows/v1/workflows/${encodeURIComponent(id)}/cancel`, {}).then(() => say("The workflow is being cancelled."), (error: unknown) => say(String(error), "bad"));
    one.reload();
  };
  return (
    <Page title={`Workflow ${shortId(id)}`} actions={<>
      {one.data !== null && !isOver(one.data) && <ActButton scope="infer" onClick={() => void cancel()}>Cancel</ActButton>}
      <a class="button" href={href("workflows")}>All workflows</a>
    </>}>
      <Loaded of={one} what="the workflow">{(workflow) => <Whole of={workflow} />}</Loaded>
    </Page>
  );
}

function Planner({ of }: { of: Workflow }) {
  const version = /@(\d+)/.exec(of.policy ?? "")?.[1];
  const name = <PolicyName name={of.policy ?? of.role} />;
  return <>{version === undefined ? name : <a href={href("policies", of.role, version)}>{name}</a>}{of.arm === "canary" && <> <Status state="canary" /></>}</>;
}

function Whole({ of }: { of: Workflow }) {
  return (
    <>
      {of.error !== null && <Banner tone="bad" title="It did not succeed"><p><DataText text={of.error} most={1000} /></p></Banner>}
      {of.warning !== null && <Banner tone="warn" title="Its budget"><p><DataText text={of.warning} most={400} /></p></Banner>}
      <Panel title="What it is">
        <Facts rows={[
          ["Instruction", <span class="wrap"><LongText text={of.instruction} most={600} /></span>],
          ["State", <Status state={of.state} />],
          ["Planner", <Planner of={of} />],
          ["Cost", <><Meter value={used(of)} label="Share of the budget that is spent or reserved" tone={used(of) >= 0.8 ? "warn" : undefined} /> {dollars(of.cost_usd)} of {dollars(of.budget_usd)}{of.reserved_usd > 0 && `, ${dollars(of.reserved_usd)} reserved`}</>],
          ["Begun", <Ago at={of.created_at} />],
          ["Took", of.ended_at === null ? null : duration((Date.parse(of.ended_at) - Date.parse(of.created_at)) / 1000)],
          ["Trajectory", <a class="id" href={href("trajectories", of.workflow_id, { role: of.role })}>{shortId(of.workflow_id)}</a>],
          ["Id", <Id id={of.workflow_id} label="workflow's id" />],
        ]} />
      </Panel>
      {of.plan === null ? <Panel title="Plan"><Empty>{isOver(of) ? "It was never planned." : "It is being planned."}</Empty></Panel> : <>
        <Panel title={`Plan, made by ${PLANNERS[of.plan.made_by] ?? of.plan.made_by}`}><Graph of={of} /></Panel>
        <Panel title="Sub-tasks" flush><SubTasks of={of} parts={of.plan.sub_tasks} /></Panel>
      </>}
      {of.result !== null && <Panel title="Result"><pre class="quote"><LongText text={of.result} most={4_000} /></pre></Panel>}
    </>
  );
}

const PLANNERS: Readonly<Record<string, string>> = { model: "the planner's model", llm: "a language model", single: "neither model: one sub-task" };

function Graph({ of }: { of: Workflow }) {
  const parts = of.plan?.sub_tasks ?? [];
  const drawing = draw(parts.map((part) => part.depends_on ?? []));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="The graph">
      <svg class="workflow" role="img" aria-label={inWords(of)} width={drawing.width} height={drawing.height} viewBox={`0 0 ${drawing.width} ${drawing.height}`}>
        {drawing.lines.map((path) => <path key={path} d={path} />)}
        {drawing.boxes.map(({ index, x, y }) => {
          const sub = of.sub_tasks[index];
          const run = sub?.run ?? null;
          const figures = run === null ? "" : `${dollars(run.cost_usd ?? 0)}, ${duration((run.latency_ms ?? 0) / 1000)}`;
          return (
            <g key={index} data-state={sub?.state ?? "waiting"} transform={`translate(${x} ${y})`}>
              <rect width={BOX.width} height={BOX.height} rx={8} />
              <text x={12} y={22} class="strong">{index + 1}. {words(parts[index]?.task_type ?? "")}</text>
              <text x={12} y={42}>{clipped(sub?.worker ?? "no worker yet")}</text>
              <text x={12} y={62}>{words(sub?.state ?? "waiting")}{figures === "" ? "" : `, ${figures}`}</text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}

function clipped(text: string): string {
  return text.length <= LINE ? text : `${text.slice(0, LINE - 1)}…`;
}

function SubTasks({ of, parts }: { of: Workflow; parts: readonly SubTask[] }) {
  const rows = parts.map((part, index) => ({ part, index, sub: of.sub_tasks[index], run: of.sub_tasks[index]?.run ?? null }));
  return (
    <Table caption="Sub-tasks" rows={rows} rowKey={(row) => row.index} columns={[
      { name: "Sub-task", show: ({ part, index }) => <><b>{index + 1}. {words(part.task_type)}</b> <span class="muted small block wrap"><DataText text={part.instruction} most={300} /></span></> },
      { name: "After", show: ({ part }) => (part.depends_on ?? []).map((each) => each + 1).join(", ") || "–" },
      { name: "State", show: ({ sub, run }) => <><Status state={sub?.state ?? "waiting"} />{run?.error != null && <span class="small block wrap"><DataText text={run.error} most={300} /></span>}</> },
      { name: "Worker", show: ({ sub, run }) => sub?.worker == null ? "–" : run?.trajectory_id == null ? sub.worker : <a href={href("trajectories", run.trajectory_id)}>{sub.worker}</a> },
      { name: "Chosen with", isNumber: true, show: ({ run }) => run?.propensity == null ? "–" : share(run.propensity) },
      { name: "Cost", isNumber: true, show: ({ run }) => run === null ? "–" : dollars(run.cost_usd ?? 0) },
      { name: "Time", isNumber: true, show: ({ run }) => run === null ? "–" : duration((run.latency_ms ?? 0) / 1000) },
      { name: "Retries", isNumber: true, show: ({ run }) => measure(run?.retries ?? 0) },
      { name: "Output", show: ({ sub }) => sub?.output == null ? "–" : <details><summary>{sub.output.length} letters</summary><pre class="quote"><LongText text={sub.output} /></pre></details> },
    ]} />
  );
}
