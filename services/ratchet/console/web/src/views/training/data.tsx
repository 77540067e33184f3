// The rows that a job learns from, in pages, why each was taken, and what was left out and why.

import { useState } from "preact/hooks";
import { useResource } from "../../api/resource.ts";
import type { ConsoleSchemas } from "../../api/types.ts";
import { count, measure, plural } from "../../format.ts";
import type { Job } from "../../parts/jobs.ts";
import { href } from "../../route.ts";
import { Empty, Facts, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, Id, Short } from "../../ui/text.tsx";
import { shortId } from "../../format.ts";

type Rows = ConsoleSchemas["RowsOut"];

const PAGE = 50;

export function Data({ job }: { job: Job }) {
  const [offset, setOffset] = useState(0);
  const has = job.snapshot != null;
  const rows = useResource<Rows>(has ? `/v1/jobs/${encodeURIComponent(job.training_job_id)}/rows?offset=${offset}&limit=${PAGE}` : null);
  if (!has) return <Panel title="Data"><Empty>Its data is chosen when it gets a slot.</Empty></Panel>;
  return <Loaded of={rows} what="the rows">{(answer) => <Shown answer={answer} role={job.role} onOffset={setOffset} />}</Loaded>;
}

function Shown({ answer, role, onOffset }: { answer: Rows; role: string; onOffset: (offset: number) => void }) {
  const end = answer.offset + answer.rows.length;
  return (
    <>
      <div class="grid">
        <Panel title="The snapshot">
          <Facts rows={[
            ["Rows", count(answer.total)],
            ["Format", answer.format],
            ["Manifest", <span class="id wrap"><DataText text={answer.uri} /></span>],
            ["Digest", <Id id={answer.digest} label="digest" />],
          ]} />
        </Panel>
        <Panel title="Why these">
          <p class="muted">Every row meets all of this:</p>
          <ul class="conditions">{answer.conditions.map((one) => <li key={one}><DataText text={one} /></li>)}</ul>
        </Panel>
        <LeftOut reasons={answer.left_out} />
      </div>
      <Panel title="Rows" flush>
        {answer.rows.length === 0 ? <Empty>It has no rows.</Empty> : <Table caption="Rows of the snapshot" rows={answer.rows} rowKey={(row) => row.index} columns={[
          { name: "Row", show: (row) => (row.trajectory_id === null ? count(row.index + 1) : <a href={href("trajectories", row.trajectory_id, { role })}>{count(row.index + 1)} <span class="id">{shortId(row.trajectory_id)}</span></a>) },
          { name: "Reward", isNumber: true, show: (row) => measure(row.reward) },
          { name: "Task", show: (row) => (row.task === null ? <span class="muted">none</span> : <Short text={row.task} />) },
          { name: "Group", show: (row) => (row.group === null ? <span class="muted">alone</span> : <Short text={row.group} />) },
          { name: "Why it was taken", show: (row) => <span class="wrap small"><DataText text={row.why} /></span> },
          { name: "Learns", show: (row) => <span class="wrap"><DataText text={row.text} most={160} /></span> },
        ]} />}
        <nav class="pages row" aria-label="Pages of rows">
          {answer.offset > 0 && <button type="button" class="button" onClick={() => onOffset(Math.max(0, answer.offset - PAGE))}>Earlier</button>}
          {end < answer.total && <button type="button" class="button" onClick={() => onOffset(end)}>Later</button>}
          <span class="muted small">{count(answer.offset + 1)} to {count(end)} of {plural(answer.total, "row")}</span>
        </nav>
      </Panel>
    </>
  );
}

/** Reasons with their counts, largest first. */
export function LeftOut({ reasons }: { reasons: Readonly<Record<string, number>> }) {
  const rows = Object.entries(reasons).filter(([, number]) => number > 0).sort(([, a], [, b]) => b - a);
  return (
    <Panel title="Left out" flush={rows.length > 0}>
      {rows.length === 0 ? <p class="muted">Nothing was left out.</p> : <Table caption="What was left out, by reason" rows={rows} rowKey={([reason]) => reason} columns={[
        { name: "Reason", show: ([reason]) => <span class="wrap"><DataText text={reason} /></span> },
        { name: "Left out", isNumber: true, show: ([, number]) => count(number) },
      ]} />}
    </Panel>
  );
}
