// The form that starts a training: what is proposed, the data that it would take, then the job.

import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, post } from "../../api/client.ts";
import { useResource } from "../../api/resource.ts";
import type { CoordinatorSchemas } from "../../api/types.ts";
import { count, plural, share, words } from "../../format.ts";
import type { Job } from "../../parts/jobs.ts";
import { RoleSelect } from "../../parts/roles.tsx";
import { href } from "../../route.ts";
import { navigate } from "../../router.ts";
import { say } from "../../ui/announce.tsx";
import { InstantField, Select, TextArea, TextField, Tick } from "../../ui/form.tsx";
import { Figure, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Failure, Loaded } from "../../ui/resource.tsx";
import { ActButton } from "../../ui/scope.tsx";
import { DataText } from "../../ui/text.tsx";
import { LeftOut } from "./data.tsx";
import { draftAgain, EMPTY, requestOf, type Draft } from "./request.ts";

type Plan = CoordinatorSchemas["PlanOut"];
type Preview = CoordinatorSchemas["PreviewOut"];
type Status = CoordinatorSchemas["TrainingStatusOut"];
type Models = CoordinatorSchemas["RoleModelsOut"];

const PRECISIONS = [["", "auto: the worker's"], "bf16", "fp32"] as const;

export function StartPage({ params }: { params: Readonly<Record<string, string>> }) {
  const again = params["again"];
  const earlier = useResource<Job>(again === undefined ? null : `/coordinator/v1/jobs/${encodeURIComponent(again)}`);
  const start = { ...EMPTY, role: params["role"] ?? "", algorithm: params["algorithm"] ?? EMPTY.algorithm };
  return (
    <Page title={again === undefined ? "Start a training" : "Train again"} actions={<a class="button" href={href("training")}>All jobs</a>}>
      {again === undefined ? <StartForm start={start} earlier={null} /> : <Loaded of={earlier} what="the earlier job">{(job) => <StartForm start={draftAgain(job).draft} earlier={job} />}</Loaded>}
    </Page>
  );
}

function StartForm({ start, earlier }: { start: Draft; earlier: Job | null }) {
  const [draft, setDraft] = useState(start);
  const [isSame, setSame] = useState(earlier?.snapshot != null);
  const [wrong, setWrong] = useState<Readonly<Record<string, string>>>({});
  const [preview, setPreview] = useState<{ of: string; answer: Preview } | null>(null);
  const [failure, setFailure] = useState<{ what: string; error: ApiError } | null>(null);
  const [isBusy, setBusy] = useState<string | null>(null);
  // The same form sent twice is one job.
  const key = useMemo(() => crypto.randomUUID(), []);
  const same = earlier !== null && isSame ? draftAgain(earlier).same : null;
  const asked = JSON.stringify([draft, isSame]);
  const set = (name: keyof Draft) => (value: string) => setDraft({ ...draft, [name]: value });
  const checked = () => {
    const made = requestOf(draft, same, key);
    setWrong("wrong" in made ? made.wrong : {});
    return "body" in made ? made.body : null;
  };
  const act = async (what: string, doIt: (body: object) => Promise<void>) => {
    const body = checked();
    if (body === null) return say("The form is not complete yet.", "warn");
    setBusy(what);
    setFailure(null);
    await doIt(body).catch((error: unknown) => setFailure({ what, error: error instanceof ApiError ? error : new ApiError(0, "console", String(error)) }));
    setBusy(null);
  };
  const look = () => act("the preview", async (body) => {
    const answer = await post<Preview>("/coordinator/v1/jobs/preview", body, { patienceMs: 600_000 });
    setPreview({ of: asked, answer });
  });
  const send = () => act("the training", async (body) => {
    const job = await post<Job>("/coordinator/v1/jobs", body, { patienceMs: 120_000 });
    say("The training is asked for.");
    navigate(href("training", job.training_job_id));
  });
  const wait = isBusy === null ? null : `The coordinator is asked for ${isBusy}.`;
  return (
    <>
      {earlier !== null && <Resuming job={earlier} draft={draft} onDraft={setDraft} />}
      <div class="split">
        <Panel title="The training">
          <Fields draft={draft} set={set} wrong={wrong} hasData={same === null} />
          {earlier?.snapshot != null && <Tick checked={isSame} onChecked={setSame}>On exactly the data of the earlier job</Tick>}
          {failure !== null && <Failure error={failure.error} what={failure.what} />}
          <div class="row">
            <ActButton scope="train" why={wait} onClick={() => void look()}>{isBusy === "the preview" ? "Choosing the data…" : "Preview the data"}</ActButton>
            <ActButton scope="train" kind="main" why={wait} onClick={() => void send()}>{isBusy === "the training" ? "Asking…" : "Start the training"}</ActButton>
          </div>
        </Panel>
        <div class="stack side-panels">
          {draft.role !== "" && <Proposal role={draft.role} onTake={set("algorithm")} />}
          {preview !== null && <PreviewPanel preview={preview.answer} isOld={preview.of !== asked} />}
        </div>
      </div>
    </>
  );
}

/** What can go on, and what cannot. */
function Resuming({ job, draft, onDraft }: { job: Job; draft: Draft; onDraft: (draft: Draft) => void }) {
  const policy = job.artifacts?.final_checkpoint;
  return (
    <Banner tone="info" title="This is a new job, with the same request"
      action={policy != null && draft.base_model !== policy && <button type="button" class="button small" onClick={() => onDraft({ ...draft, base_model: policy })}>Begin from its policy</button>}>
      <p>To let a cancelled or failed job go on from its newest checkpoint, there is "Resume" on its page.
        {policy != null ? " This job made a policy: the new one can begin from it." : " This job made no policy to begin from."}</p>
    </Banner>
  );
}

function Fields({ draft, set, wrong, hasData }: { draft: Draft; set: (name: keyof Draft) => (value: string) => void; wrong: Readonly<Record<string, string>>; hasData: boolean }) {
  const status = useResource<Status>("/coordinator/v1/status/training");
  const models = useResource<Models>(draft.role === "" ? null : `/coordinator/v1/models/${encodeURIComponent(draft.role)}`);
  const known = [...new Set(["auto", ...(status.data?.algorithms ?? []), draft.algorithm])];
  const field = (name: keyof Draft, label: string, placeholder = "by default") => (
    <TextField label={label} placeholder={placeholder} value={draft[name]} onValue={set(name)} wrong={wrong[name] ?? null} />
  );
  return (
    <>
      {status.data?.training_enabled === false && <Banner tone="warn" title="Training is disabled here: the coordinator will refuse it." />}
      <div class="fields">
        <RoleSelect value={draft.role} onValue={set("role")} none="choose a role" wrong={wrong["role"] ?? null} />
        <Select label="Algorithm" value={draft.algorithm} onValue={set("algorithm")} options={known.map((one) => (one === "auto" ? [one, "auto: as proposed"] : one))} />
        <Select label="Priority" value={draft.priority} onValue={set("priority")} options={["low", "normal", "high", "urgent"]} />
      </div>
      <TextField label="Begins from" value={draft.base_model} onValue={set("base_model")} suggested={(models.data?.versions ?? []).filter((one) => one.uri !== "").map((one) => [one.uri, `${one.name}, ${one.state}`] as const)}
        hint={`stable: what serves the role. Else a version, a policy's manifest, or a name or path of a model that the worker has.${["dpo", "kto"].includes(draft.algorithm) ? " It is the reference, too." : ""}`} />
      {hasData && (
        <fieldset class="fields"><legend>Data</legend>
          {field("sample_size", "Most trajectories", "5000")}
          {field("min_reward", "Least reward", "any")}
          <InstantField label="Not older than" value={draft.since} onValue={set("since")} />
        </fieldset>
      )}
      <fieldset class="fields"><legend>How it learns</legend>
        {field("learning_rate", "Learning rate")}
        {field("epochs", "Epochs")}
        {field("batch_size", "Batch size")}
        {field("max_steps", "Most train steps", "no limit")}
        {field("beta", "Beta")}
        {field("seed", "Seed")}
        <Select label="Precision" value={draft.precision} onValue={set("precision")} options={PRECISIONS} />
      </fieldset>
      <TextArea label="Further hyperparameters" rows={2} placeholder='{"kl_beta": 0.01}' spellcheck={false} value={draft.more} onValue={set("more")} wrong={wrong["more"] ?? null} />
      {field("notes", "Notes", "why, for those who read it later")}
    </>
  );
}

function Proposal({ role, onTake }: { role: string; onTake: (algorithm: string) => void }) {
  const plan = useResource<Plan>(`/coordinator/v1/plan?role=${encodeURIComponent(role)}`);
  return (
    <Panel title="What is proposed">
      <Loaded of={plan} what="a proposal">{(answer) => (
        <>
          {answer.algorithm === null || answer.algorithm === undefined
            ? <p><b>Nothing yet.</b> <DataText text={answer.why} /></p>
            : <div class="row"><b class="big"><DataText text={answer.algorithm} /></b><button type="button" class="button small" onClick={() => onTake(answer.algorithm ?? "auto")}>Take it</button></div>}
          {answer.algorithm != null && <p class="wrap"><DataText text={answer.why} /></p>}
          <div class="figures small-figures">
            <Figure name="rewarded" value={count(answer.shape.rewarded)} />
            <Figure name="succeeded" value={share(answer.shape.success_share)} />
            <Figure name="trainable" value={count(answer.shape.trainable)} />
            <Figure name="pairs" value={count(answer.shape.pairs)} />
            <Figure name="thumbs" value={`${count(answer.shape.thumbs_up)} up, ${count(answer.shape.thumbs_down)} down`} />
          </div>
          {Object.keys(answer.rejected).length > 0 && (
            <details><summary>Why not the others</summary>
              <dl class="facts">{Object.entries(answer.rejected).map(([name, why]) => [<dt key={`${name}?`}><DataText text={name} /></dt>, <dd key={name}><DataText text={why} /></dd>])}</dl>
            </details>
          )}
        </>
      )}</Loaded>
    </Panel>
  );
}

function PreviewPanel({ preview, isOld }: { preview: Preview; isOld: boolean }) {
  const [live, setLive] = useState(false);
  useEffect(() => setLive(true), []);
  const groups = preview.reward_groups;
  return (
    <>
      <Panel title="The data it would take now">
        {isOld && <p class="stale">The form has changed since: look again.</p>}
        <p class="hidden" role="status">{live ? `It would take ${plural(preview.rows, "row")}.` : ""}</p>
        {preview.refused != null
          ? <Banner tone="bad" title="It would be refused"><p><DataText text={preview.refused} most={800} /></p></Banner>
          : <Banner tone="good" title={`${plural(preview.rows, "row")} to learn from`} />}
        {preview.planned != null && <p class="wrap"><DataText text={preview.planned} most={800} /></p>}
        <p class="muted">In the format "{words(preview.format)}"{preview.waiting > 0 ? `; ${plural(preview.waiting, "stored trajectory has", "stored trajectories have")} no reward yet` : ""}; rewards by <DataText text={preview.reward_function} />.</p>
        {groups != null && <p class="muted">{plural(groups.mixed_groups, "task")} with tries of different rewards, of {plural(groups.groups, "task")} with several tries; {plural(groups.singletons, "task")} with one.</p>}
      </Panel>
      <LeftOut reasons={preview.left_out} />
    </>
  );
}
