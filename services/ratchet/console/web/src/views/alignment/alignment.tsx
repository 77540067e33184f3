// Learning from preferences: the data's card, reward model and DPO started and followed, the last checkpoint.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { post } from "../../api/client.ts";
import { useResource } from "../../api/resource.ts";
import type { ConsoleSchemas, CoordinatorSchemas } from "../../api/types.ts";
import { bytes, count, plural, share, shortId, words } from "../../format.ts";
import { JobTable } from "../../parts/job_list.tsx";
import { inOrder, isActive, type Job } from "../../parts/jobs.ts";
import { RoleSelect } from "../../parts/roles.tsx";
import { href, type Route } from "../../route.ts";
import { navigate } from "../../router.ts";
import { Empty, Facts, Figure, Meter, Page, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { ActButton } from "../../ui/scope.tsx";
import { Pill } from "../../ui/status.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, Id } from "../../ui/text.tsx";
import { CurvePanel, useCurves } from "../training/curves.tsx";
import { inReadingOrder } from "../training/curves.ts";
import { Made, State } from "../training/job.tsx";
import { partsOf } from "./pairs_file.ts";
import { droppedLines, parseReport, verdict, type SchemaReport } from "./schema_report.ts";

type Jobs = CoordinatorSchemas["JobsOut"];
type Dpo = CoordinatorSchemas["DpoStatusOut"];
type DpoRole = CoordinatorSchemas["DpoRoleOut"];

const ALGORITHMS = ["reward_model", "dpo", "kto"] as const;
const TAILED = 3;

export function AlignmentView({ route }: { route: Route }) {
  const role = route.params["role"] ?? "";
  const asked = (algorithm: string) => `/coordinator/v1/jobs?limit=20&algorithm=${algorithm}${role === "" ? "" : `&role=${encodeURIComponent(role)}`}`;
  const options = { on: (hint: { kind: string }) => hint.kind === "job", everyMs: 3_000 };
  const reward = useResource<Jobs>(asked(ALGORITHMS[0]), options);
  const dpo = useResource<Jobs>(asked(ALGORITHMS[1]), options);
  const kto = useResource<Jobs>(asked(ALGORITHMS[2]), options);
  const all = inOrder([reward, dpo, kto].flatMap((one) => one.data?.jobs ?? []));
  return (
    <Page title="Alignment" lead="What people prefer becomes pairs, pairs train a reward model or a policy. The jobs are those of the command line: the coordinator runs them, and this page follows."
      actions={<>
        <a class="button" href={href("training", { start: "1", role, algorithm: "reward_model" })}>Train a reward model</a>
        <a class="button main" href={href("training", { start: "1", role, algorithm: "dpo" })}>Start DPO</a>
      </>}>
      <div class="fields"><RoleSelect value={role} onValue={(value) => navigate(href("alignment", { role: value }), { replace: true })} /></div>
      <Tail jobs={all} />
      <div class="grid">
        <Preferences role={role} />
        <PairsFile key={role} role={role} />
        <DatasetCard />
      </div>
      <Panel title="Reward models, DPO and KTO" flush>
        <Loaded of={reward} what="the jobs">{() => all.length === 0
          ? <Empty>No job has learnt from preferences yet.</Empty>
          : <JobTable caption="Jobs that learn from preferences" jobs={all.slice(0, 30)} />}</Loaded>
      </Panel>
    </Page>
  );
}

/** The job that runs, or the last one: its progress, its newest figures, its checkpoint, its log. */
function Tail({ jobs }: { jobs: readonly Job[] }) {
  const job = jobs[0] ?? null;
  const curves = useCurves(job?.training_job_id ?? null, job);
  if (job === null) return null;
  return (
    <section class="stack side-panels" aria-label="The newest job">
      <State job={job} title={`${isActive(job) ? "Running" : "Newest"}: ${words(job.algorithm)} of ${job.role}`} actions={<a href={href("training", job.training_job_id)}>All about job {shortId(job.training_job_id)}</a>} />
      <Made job={job} />
      <Loaded of={curves} what="its curves">{(answer) => answer.curves.length === 0
        ? null
        : <div class="grid stretch" style={{ "--least": "300px" }}>{inReadingOrder(answer.curves).slice(0, TAILED).map((curve) => <CurvePanel key={curve.name} curve={curve} />)}</div>}</Loaded>
    </section>
  );
}

function Preferences({ role }: { role: string }) {
  const dpo = useResource<Dpo>("/coordinator/v1/status/dpo", { on: (hint) => hint.kind === "job" || hint.kind === "feedback", everyMs: 15_000 });
  return (
    <Panel title="Preferences">
      <Loaded of={dpo} what="the preferences">{(answer) => {
        const rows = Object.entries(answer.roles).filter(([name]) => role === "" || name === role);
        if (rows.length === 0) return <Empty><p>No preference is stored yet.</p><p><a href={href("annotation", { tab: "pairs", role })}>Judge pairs</a>, or take in those of a file.</p></Empty>;
        return <div class="stack">{rows.map(([name, one]) => <RolePreferences key={name} role={name} of={one} />)}</div>;
      }}</Loaded>
    </Panel>
  );
}

function RolePreferences({ role, of }: { role: string; of: DpoRole }) {
  return (
    <div class="stack">
      <h3><DataText text={role} /></h3>
      <p>{count(of.total)} pairs: {Object.entries(of.pairs).map(([source, number]) => `${count(number)} ${source}`).join(", ") || "no source yet"}</p>
      {of.threshold == null
        ? <p class="muted">{count(of.since_last_dpo)} since the last training; it starts by hand.</p>
        : <div class="progress"><Meter value={of.since_last_dpo / of.threshold} label={`Preferences towards the next training of ${role}`} /><span>{count(of.since_last_dpo)} of {count(of.threshold)}</span></div>}
      {of.why !== undefined && of.why !== "" && <p class="muted small wrap"><DataText text={of.why} most={300} /></p>}
      {of.newest_policy != null && <p class="small">Newest policy of pairs: <a class="id" href={href("policies", role)}><DataText text={of.newest_policy} /></a></p>}
    </div>
  );
}

/** The pairs of a file are taken in, part by part; those that are stored already change nothing. */
function PairsFile({ role }: { role: string }) {
  const [file, setFile] = useState<File>();
  const [taken, setTaken] = useState<{ added: number; present: number; leftOut: string[] } | null>(null);
  const [wrong, setWrong] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const take = async (from: File) => {
    setBusy(true);
    setWrong(null);
    try {
      let sum = { added: 0, present: 0, leftOut: [] as string[] };
      for (const { before, lines } of partsOf(await from.text())) {
        const { added, present, left_out: leftOut } = await post<ConsoleSchemas["PairsFileOut"]>("/v1/annotation/preferences", { role, lines }, { patienceMs: 120_000 });
        sum = { added: sum.added + added, present: sum.present + present, leftOut: [...sum.leftOut, ...leftOut.map((one) => `line ${before + one.line}: ${one.reason}`)] };
        setTaken(sum);
      }
    } catch (error) {
      setWrong(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };
  const why = role === "" ? "Choose a role first." : file === undefined ? "Choose a file first." : isBusy ? "It is being taken in." : null;
  return (
    <Panel title="Pairs from a file">
      <FileField label="A file of pairs" accept=".jsonl" onFile={(chosen) => (setFile(chosen), setTaken(null), setWrong(null))}>
        <code>ratchet preferences export</code> and <code>ratchet data argilla-export</code> write them. The same file twice changes nothing.
      </FileField>
      <ActButton scope="annotate" why={why} onClick={() => file !== undefined && void take(file)}>{isBusy ? "Taking them in…" : "Take them in"}</ActButton>
      {wrong !== null && <p class="wrong" role="alert"><DataText text={wrong} /></p>}
      {taken !== null && (
        <div role="status">
          <p>{plural(taken.added, "new pair")}, {count(taken.present)} stored before, {count(taken.leftOut.length)} left out.</p>
          <ul class="small wrap">{taken.leftOut.slice(0, 5).map((one) => <li key={one}><DataText text={one} most={300} /></li>)}</ul>
        </div>
      )}
    </Panel>
  );
}

function FileField({ label, accept, onFile, children }: { label: string; accept: string; onFile: (file: File | undefined) => void; children: ComponentChildren }) {
  return (
    <label class="field">
      <span class="label">{label}</span>
      <input type="file" accept={accept} onChange={(event) => onFile(event.currentTarget.files?.[0])} />
      <span class="hint">{children}</span>
    </label>
  );
}

/** The card of a data set that was exported here or elsewhere: its report is read by the browser, and sent nowhere. */
function DatasetCard() {
  const [report, setReport] = useState<SchemaReport | null>(null);
  const [wrong, setWrong] = useState<string | null>(null);
  const read = async (file: File | undefined) => {
    if (file === undefined) return;
    try {
      if (file.size > 16e6) throw new Error("This file is larger than 16 MB: a report is small.");
      setReport(parseReport(await file.text()));
      setWrong(null);
    } catch (error) {
      setReport(null);
      setWrong(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <Panel title="Dataset card">
      <FileField label="The report of an export" accept=".json" onFile={(file) => void read(file)}>
        <code>ratchet data argilla-export</code> writes <code>schema_report.json</code> beside its data. It stays in this browser.
      </FileField>
      {wrong !== null && <p class="wrong" role="alert"><DataText text={wrong} /></p>}
      {report !== null && <Card report={report} />}
    </Panel>
  );
}

function Card({ report }: { report: SchemaReport }) {
  const how = verdict(report);
  const dropped = droppedLines(report);
  return (
    <>
      <p><Pill tone={how.tone} icon={how.tone === "good" ? "good" : "warn"}>{share(report.valid_ratio)} valid</Pill> {how.text}</p>
      <div class="figures small-figures">
        <Figure name="records" value={count(report.total)} />
        <Figure name="valid" value={count(report.valid)} />
        {Object.entries(report.splits).map(([name, number]) => <Figure key={name} name={name} value={count(number)} />)}
      </div>
      <Facts rows={[
        ["File", <><DataText text={report.input.name} most={200} /> <span class="muted">{bytes(report.input.size)}</span></>],
        ["sha256", <Id id={report.input.sha256} label="sha256" />],
        ["Seed", String(report.seed)],
        ["Redacted", Object.keys(report.redacted).length === 0 ? null : Object.entries(report.redacted).map(([kind, number]) => `${count(number)} ${words(kind)}`).join(", ")],
      ]} />
      {dropped.length > 0 && <Table caption="What was dropped" rows={dropped} rowKey={(line) => line.reason} columns={[
        { name: "Dropped", show: (line) => <><b>{words(line.reason)}</b> <span class="muted small block">{line.meaning}</span></> },
        { name: "Records", isNumber: true, show: (line) => count(line.count) },
        { name: "The first of them", show: (line) => <span class="small wrap"><DataText text={line.first.slice(0, 3).map((one) => `${one.number}: ${one.problem}`).join("; ")} most={300} /></span> },
      ]} />}
      <details><summary>Options of the export</summary><pre class="quote"><DataText text={JSON.stringify(report.parameters, null, 2)} most={2000} /></pre></details>
    </>
  );
}
