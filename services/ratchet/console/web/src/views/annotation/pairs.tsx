// Two answers to one question, in an order that says nothing: which one is better?

import { useRef, useState } from "preact/hooks";
import { ApiError, post } from "../../api/client.ts";
import { useResource } from "../../api/resource.ts";
import { whyNot } from "../../api/session.ts";
import type { ConsoleSchemas } from "../../api/types.ts";
import { count, plural } from "../../format.ts";
import { Conversation } from "../../parts/conversation.tsx";
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

export function Pairs({ role }: { role: string }) {
  const [judged, setJudged] = useState(0);
  const pairs = useResource<Answer>(annotationPath("pair", role));
  return (
    <Loaded of={pairs} what="the next pair">{(answer) => answer.pair === null
      ? <Panel title="Pairs"><Empty><p>{answer.why ?? "There is no pair to judge."}</p><button type="button" class="button" onClick={pairs.reload}>Ask again</button></Empty></Panel>
      : <Judge key={answer.pair.pair_id} pair={answer.pair} judged={judged} onJudged={() => (setJudged(judged + 1), pairs.reload())} />}
    </Loaded>
  );
}

function Judge({ pair, judged, onJudged }: { pair: Pair; judged: number; onJudged: () => void }) {
  const [sure, setSure] = useState("");
  const [comment, setComment] = useState("");
  const [isSending, setSending] = useState(false);
  const isJudged = useRef(false);
  const choose = async (choice: Choice) => {
    const why = whyNot("annotate");
    if (why !== null) return say(why, "warn");
    // Until the next pair is there: a second key must not judge it unseen.
    if (isSending || isJudged.current) return;
    setSending(true);
    const done = await judge(pair, choice, sure, comment);
    setSending(false);
    isJudged.current = done;
    if (done) onJudged();
  };
  useShortcuts({ ArrowLeft: () => void choose("left"), ArrowRight: () => void choose("right"), "0": () => void choose("neither") });
  const wait = isSending ? "It is being sent." : null;
  return (
    <>
      <Panel title="The question" actions={<span class="muted small">{plural(pair.remaining, "pair")} left{judged > 0 ? `, ${count(judged)} judged now` : ""}</span>}>
        {pair.task_id !== null && <p class="muted small">Task <DataText text={pair.task_id} most={120} /></p>}
        <Conversation messages={pair.question} whole={null} />
      </Panel>
      <div class="versus">
        <Panel title="Left"><Conversation messages={pair.left} whole={null} /></Panel>
        <Panel title="Right"><Conversation messages={pair.right} whole={null} /></Panel>
      </div>
      <div class="foot-bar panel">
        <div class="row choices" role="group" aria-label="Which one is better?">
          <ActButton scope="annotate" kind="main" why={wait} onClick={() => void choose("left")}><kbd>←</kbd> Left is better</ActButton>
          <ActButton scope="annotate" why={wait} onClick={() => void choose("neither")}>Neither <kbd>0</kbd></ActButton>
          <ActButton scope="annotate" kind="main" why={wait} onClick={() => void choose("right")}>Right is better <kbd>→</kbd></ActButton>
        </div>
        <div class="fields">
          <Select label="How sure" value={sure} onValue={setSure} options={SURE} />
          <div class="wide"><TextField label="Why" placeholder="optional" maxLength={4000} value={comment} onValue={setComment} /></div>
        </div>
        <p class="muted small">The order was drawn for this pair, and says nothing. “Neither” publishes nothing and does not show it to you again.</p>
      </div>
    </>
  );
}

async function judge(pair: Pair, choice: Choice, sure: string, comment: string): Promise<boolean> {
  try {
    await post("/v1/annotation/judgements", {
      pair_id: pair.pair_id, choice, confidence: sure === "" ? null : Number(sure), comment: comment.trim() === "" ? null : comment.trim(),
    });
    say(choice === "neither" ? "Skipped." : `Given: the ${choice} answer is better.`);
    return true;
  } catch (error) {
    say(error instanceof ApiError ? `Not given: ${error.message}` : String(error), "bad");
    return false;
  }
}
