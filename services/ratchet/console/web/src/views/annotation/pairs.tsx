// Two answers to one question, in an order that says nothing: which one is better?

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, post } from "../../api/client.ts";
import { useResource } from "../../api/resource.ts";
import { key, whyNot } from "../../api/session.ts";
import type { ConsoleSchemas } from "../../api/types.ts";
import { count, plural } from "../../format.ts";
import { Conversation } from "../../parts/conversation.tsx";
import { Store, useStore } from "../../store.ts";
import { say } from "../../ui/announce.tsx";
import { Select, TextField } from "../../ui/form.tsx";
import { useShortcuts } from "../../ui/keys.ts";
import { Empty, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { ActButton } from "../../ui/scope.tsx";
import { DataText } from "../../ui/text.tsx";
import { annotationPath } from "./annotation.tsx";

type Answer = ConsoleSchemas["PairsOut"];
type Pair = ConsoleSchemas["PairOut"];
type Choice = ConsoleSchemas["JudgementIn"]["choice"];

const SURE: readonly (readonly [string, string])[] = [["", "not stated"], ["1", "certain"], ["0.75", "fairly sure"], ["0.5", "hardly sure"]];

const ASK_AGAIN_MS = 2_000;

/** Ids of the pairs that were judged here: for a moment the console may offer one of them again. */
const judged = new Store<ReadonlySet<string>>(new Set());
/** One judgement at a time, whichever pair is shown and whether the page is open. */
const isSending = new Store(false);
key.subscribe(() => judged.set(new Set()));

export function Pairs({ role }: { role: string }) {
  const [times, setTimes] = useState(0);
  const done = useStore(judged);
  const pairs = useResource<Answer>(annotationPath("pair", role));
  return (
    <Loaded of={pairs} what="the next pair">{(answer) => answer.pair === null
      ? <Panel title="Pairs"><Empty><p>{answer.why ?? "There is no pair to judge."}</p><button type="button" class="button" onClick={pairs.reload}>Ask again</button></Empty></Panel>
      : <Judge key={answer.pair.pair_id} pair={answer.pair} times={times} onJudged={() => (setTimes(times + 1), pairs.reload())} onChanged={pairs.reload}
        ahead={done.has(answer.pair.pair_id) ? <OnItsWay after={answer} onAsk={pairs.reload} /> : null} />}
    </Loaded>
  );
}

/** In the place of the buttons, while the pair that is shown is a judged one. */
function OnItsWay({ after, onAsk }: { after: Answer; onAsk: () => void }) {
  useEffect(() => {
    const timer = setTimeout(onAsk, ASK_AGAIN_MS);
    return () => clearTimeout(timer);
  }, [after]);
  return <p class="muted" role="status">The next pair is on its way.</p>;
}

/** `ahead`: what to show instead of the buttons. */
function Judge({ pair, times, ahead, onJudged, onChanged }: { pair: Pair; times: number; ahead: ComponentChildren; onJudged: () => void; onChanged: () => void }) {
  const [sure, setSure] = useState("");
  const [comment, setComment] = useState("");
  const isWaiting = useStore(isSending);
  const choose = async (choice: Choice) => {
    const why = whyNot("annotate");
    if (why !== null) return say(why, "warn");
    if (isSending.value || judged.value.has(pair.pair_id)) return;
    const own = key.value;
    isSending.set(true);
    const isGiven = await judge(pair, choice, sure, comment, onChanged);
    isSending.set(false);
    if (!isGiven || own !== key.value) return;
    judged.set(new Set([...judged.value, pair.pair_id]));
    onJudged();
  };
  useShortcuts({ ArrowLeft: () => void choose("left"), ArrowRight: () => void choose("right"), "0": () => void choose("neither") });
  const wait = isWaiting ? "It is being sent." : null;
  return (
    <>
      <Panel title="The question" actions={<span class="muted small">{plural(pair.remaining, "pair")} left{times > 0 ? `, ${count(times)} judged now` : ""}</span>}>
        {pair.task_id !== null && <p class="muted small">Task <DataText text={pair.task_id} most={120} /></p>}
        <Conversation messages={pair.question} whole={null} />
      </Panel>
      <div class="versus">
        <Panel title="Left"><Conversation messages={pair.left} whole={null} /></Panel>
        <Panel title="Right"><Conversation messages={pair.right} whole={null} /></Panel>
      </div>
      <div class="foot-bar panel">
        {ahead ?? <>
          <div class="row choices" role="group" aria-label="Which one is better?">
            <ActButton scope="annotate" kind="main" why={wait} onClick={() => void choose("left")}><kbd>←</kbd> Left is better</ActButton>
            <ActButton scope="annotate" why={wait} onClick={() => void choose("neither")}>Neither <kbd>0</kbd></ActButton>
            <ActButton scope="annotate" kind="main" why={wait} onClick={() => void choose("right")}>Right is better <kbd>→</kbd></ActButton>
          </div>
          <div class="fields">
            <Select label="How sure" value={sure} onValue={setSure} options={SURE} />
            <div class="wide"><TextField label="Why" placeholder="optional" maxLength={4000} value={comment} onValue={setComment} /></div>
          </div>
        </>}
        <p class="muted small">The order was drawn for this pair, and says nothing. “Neither” publishes nothing and does not show it to you again.</p>
      </div>
    </>
  );
}

/** `onChanged`: the pair's texts are others than those that are shown. */
async function judge(pair: Pair, choice: Choice, sure: string, comment: string, onChanged: () => void): Promise<boolean> {
  try {
    await post("/v1/annotation/judgements", {
      pair_id: pair.pair_id, digest: pair.digest, choice, confidence: sure === "" ? null : Number(sure), comment: comment.trim() === "" ? null : comment.trim(),
    });
    say(choice === "neither" ? "Skipped." : `Given: the ${choice} answer is better.`);
    return true;
  } catch (error) {
    say(error instanceof ApiError ? `Not given: ${error.message}` : String(error), "bad");
    if (error instanceof ApiError && error.status === 409) onChanged();
    return false;
  }
}
