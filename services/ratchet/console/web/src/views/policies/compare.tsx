// Two policies on the same prompts, side by side: typed ones, or prompts that agents sent.

import { useState } from "preact/hooks";
import { ApiError, post, request } from "../../api/client.ts";
import { useResource } from "../../api/resource.ts";
import { whyNot } from "../../api/session.ts";
import type { CoordinatorSchemas, Model } from "../../api/types.ts";
import { duration } from "../../format.ts";
import { href } from "../../route.ts";
import { Select, TextArea } from "../../ui/form.tsx";
import { Empty, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Loaded } from "../../ui/resource.tsx";
import { ActButton } from "../../ui/scope.tsx";
import { Pill } from "../../ui/status.tsx";
import { DataText } from "../../ui/text.tsx";
import { answerText, byRole, pair } from "./models.ts";
import { paths } from "./paths.ts";

const PATIENCE_MS = 180_000;
const SIDES = ["left", "right"] as const;
type Side = (typeof SIDES)[number];

interface Prompt {
  readonly messages: readonly Readonly<Record<string, unknown>>[];
  readonly tools: readonly Readonly<Record<string, unknown>>[];
}

interface Reply {
  readonly text: string | null;
  readonly wrong: string | null;
  readonly seconds: number;
}

interface Round {
  readonly id: number;
  readonly prompt: Prompt;
  readonly names: Readonly<Record<Side, string>>;
  readonly replies: Partial<Record<Side, Reply>>;
}

export function CompareView({ params }: { params: Readonly<Record<string, string>> }) {
  const all = useResource<CoordinatorSchemas["ModelsOut"]>(paths.all);
  return (
    <Page title="Two policies side by side" lead="The same prompt to both, through the gateway, which records these calls as it records those of agents: with the arm “pinned”.">
      <nav aria-label="Where you are" class="small"><a href={href("policies")}>Policies</a> › compare</nav>
      <Loaded of={all} what="the policies">{({ models }) => <Bench models={models.filter((model) => model.status === "ready")} params={params} />}</Loaded>
    </Page>
  );
}

function Bench({ models, params }: { models: readonly Model[]; params: Readonly<Record<string, string>> }) {
  const [chosen, setChosen] = useState<Record<Side, string>>(() => pair(models, params["role"], Number(params["left"])));
  const [text, setText] = useState("");
  const [rounds, setRounds] = useState<readonly Round[]>([]);
  if (models.length === 0) return <Panel title="Policies"><Empty>No policy can be called yet: one can once it has passed its gates.</Empty></Panel>;
  const options = byRole(models).flatMap(([, versions]) => versions.map((model) => [model.name, `${model.name} (${model.state})`] as const));
  const ask = (prompt: Prompt) => {
    const round: Round = { id: (rounds[0]?.id ?? 0) + 1, prompt, names: chosen, replies: {} };
    setRounds((all) => [round, ...all].slice(0, 20));
    for (const side of SIDES) {
      void answered(chosen[side], prompt).then((reply) => setRounds((all) => all.map((one) => (one.id === round.id ? { ...one, replies: { ...one.replies, [side]: reply } } : one))));
    }
  };
  const why = chosen.left === "" || chosen.right === "" ? "Choose two policies first." : null;
  const model = models.find((each) => each.name === chosen.left);
  return (
    <>
      <Panel title="Prompt">
        <div class="grid">
          {SIDES.map((side) => <Select key={side} label={side === "left" ? "Left" : "Right"} value={chosen[side]} onValue={(name) => setChosen({ ...chosen, [side]: name })} options={[["", "choose one"], ...options]} />)}
        </div>
        <TextArea label="What a user writes" value={text} onValue={setText} />
        <div class="row">
          <ActButton scope="infer" kind="main" why={why ?? (text.trim() === "" ? "Write a prompt first." : null)} onClick={() => ask({ messages: [{ role: "user", content: text }], tools: [] })}>Ask both</ActButton>
          {whyNot("infer") !== null && <span class="muted">{whyNot("infer")}</span>}
        </div>
        {model !== undefined && <Replayed model={model} why={why} onAsk={ask} />}
      </Panel>
      <div aria-live="polite" class="stack gap">{rounds.map((round) => <RoundPanel key={round.id} round={round} />)}</div>
    </>
  );
}

/** Prompts that agents sent after the left policy's data was gathered. */
function Replayed({ model, why, onAsk }: { model: Model; why: string | null; onAsk: (prompt: Prompt) => void }) {
  const [state, setState] = useState<{ prompts: CoordinatorSchemas["ReplayPromptsOut"]["prompts"] } | { wrong: string } | "asking" | null>(null);
  const load = async () => {
    setState("asking");
    try {
      setState(await request<CoordinatorSchemas["ReplayPromptsOut"]>(paths.prompts(model.role, model.version)));
    } catch (error) {
      setState({ wrong: error instanceof ApiError ? error.message : String(error) });
    }
  };
  return (
    <details onToggle={(event) => event.currentTarget.open && state === null && void load()}>
      <summary>Or a prompt that an agent of {model.role} sent</summary>
      <div class="stack replayed">
        {state === "asking" && <p role="status" class="muted">Asking for prompts…</p>}
        {state !== null && state !== "asking" && "wrong" in state && <Banner tone="warn" title="No prompts"><p><DataText text={state.wrong} /></p></Banner>}
        {state !== null && state !== "asking" && "prompts" in state && (state.prompts.length === 0 ? <p class="muted">There is none that its data does not hold.</p> : (
          <ul class="stack">
            {state.prompts.map((one) => (
              <li key={one.turn_id} class="row">
                <ActButton scope="infer" kind="small" why={why} onClick={() => onAsk({ messages: one.messages, tools: one.tools })}>Ask both</ActButton>
                <span class="wrap"><DataText text={lastText(one.messages)} most={160} /></span>
              </li>
            ))}
          </ul>
        ))}
      </div>
    </details>
  );
}

function RoundPanel({ round }: { round: Round }) {
  return (
    <Panel title="Answers">
      <p class="quote"><DataText text={lastText(round.prompt.messages)} most={600} /></p>
      <div class="grid">
        {SIDES.map((side) => (
          <section key={side} class="stack" aria-label={`Answer of ${round.names[side]}`}>
            <h3 class="id">{round.names[side]}</h3>
            <ReplyText reply={round.replies[side]} />
          </section>
        ))}
      </div>
    </Panel>
  );
}

function ReplyText({ reply }: { reply: Reply | undefined }) {
  if (reply === undefined) return <p class="muted" role="status">Waiting for the answer, for three minutes at most…</p>;
  if (reply.wrong !== null) return <Banner tone="bad" title="No answer"><p><DataText text={reply.wrong} most={1000} /></p></Banner>;
  return (
    <>
      <div class="quote"><DataText text={reply.text === "" ? "(an empty answer)" : (reply.text ?? "")} most={4000} /></div>
      <p class="small"><Pill tone="none" icon="wait">{duration(reply.seconds)}</Pill></p>
    </>
  );
}

async function answered(name: string, prompt: Prompt): Promise<Reply> {
  const began = performance.now();
  const done = (text: string | null, wrong: string | null): Reply => ({ text, wrong, seconds: (performance.now() - began) / 1000 });
  const tools = prompt.tools.length > 0 ? { tools: prompt.tools } : {};
  try {
    return done(answerText(await post(paths.chat, { model: name, messages: prompt.messages, ...tools }, { patienceMs: PATIENCE_MS })), null);
  } catch (error) {
    return done(null, error instanceof ApiError ? error.message : String(error));
  }
}

function lastText(messages: readonly Readonly<Record<string, unknown>>[]): string {
  const content = messages.at(-1)?.["content"];
  return typeof content === "string" ? content : JSON.stringify(content ?? messages.at(-1) ?? "");
}
