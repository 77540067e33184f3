// Thumbs, stars, a comment, a correction: by mouse and by key. Each goes to the gateway with the person's own key.

import { useRef, useState } from "preact/hooks";
import { ApiError, post } from "../api/client.ts";
import { session, whyNot } from "../api/session.ts";
import { useStore } from "../store.ts";
import { say } from "../ui/announce.tsx";
import { Dialog } from "../ui/dialog.tsx";
import { TextArea } from "../ui/form.tsx";
import { Icon } from "../ui/icons.tsx";
import { useShortcuts } from "../ui/keys.ts";
import { ActButton } from "../ui/scope.tsx";
import { feedbackOf, given, ownOpinion, type Feedback, type Kind, type Value } from "./feedback.ts";

const STARS = [1, 2, 3, 4, 5] as const;
const LONGEST = 20_000;

interface Target {
  readonly trajectory_id: string;
  readonly role: string;
}

/** Of one trajectory: another one has another `key`. `answer`: the text that a correction begins from. */
export function Rating({ of, feedback, answer, onGiven }: { of: Target; feedback: readonly Feedback[]; answer: string; onGiven?: () => void }) {
  const who = useStore(session);
  const [mine, setMine] = useState<{ thumbs?: boolean; rating?: number }>({});
  const [writing, setWriting] = useState<"comment" | "correction" | null>(null);
  const isSending = useRef(false);
  const own = { ...(who === null ? { thumbs: null, rating: null } : ownOpinion(feedback, who)), ...mine };
  const give = async (kind: Kind, value: Value) => {
    const why = whyNot("annotate");
    if (why !== null) return say(why, "warn");
    if (isSending.current) return say("Not given: the one before is still being sent.", "warn");
    isSending.current = true;
    const isGiven = await sent(of, kind, value);
    isSending.current = false;
    if (!isGiven) return;
    setMine((before) => (kind === "thumbs" || kind === "rating" ? { ...before, [kind]: value } : before));
    onGiven?.();
  };
  const write = (kind: "comment" | "correction") => {
    const why = whyNot("annotate");
    if (why !== null) say(why, "warn");
    else setWriting(kind);
  };
  useShortcuts({
    u: () => void give("thumbs", true),
    d: () => void give("thumbs", false),
    c: () => write("comment"),
    ...Object.fromEntries(STARS.map((stars) => [String(stars), () => void give("rating", stars)])),
  });
  return (
    <div class="rating" role="group" aria-label="Your rating">
      <span class="row">
        <ActButton scope="annotate" pressed={own.thumbs === true} onClick={() => void give("thumbs", true)}><Icon name="up" /> Good <kbd>u</kbd></ActButton>
        <ActButton scope="annotate" pressed={own.thumbs === false} onClick={() => void give("thumbs", false)}><Icon name="down" /> Bad <kbd>d</kbd></ActButton>
      </span>
      <span class="row stars" role="group" aria-label="Stars">
        {STARS.map((stars) => (
          <ActButton key={stars} scope="annotate" kind="star" pressed={own.rating !== null && stars <= own.rating} onClick={() => void give("rating", stars)}>
            <Icon name="reward" /><span class="hidden">{stars === 1 ? "1 star" : `${stars} stars`}</span>
          </ActButton>
        ))}
        <span class="muted small">{own.rating === null ? <><kbd>1</kbd> to <kbd>5</kbd></> : `${own.rating} of 5`}</span>
      </span>
      <span class="row">
        <ActButton scope="annotate" onClick={() => write("comment")}>Comment <kbd>c</kbd></ActButton>
        <ActButton scope="annotate" onClick={() => write("correction")}>Correct the answer</ActButton>
      </span>
      {writing !== null && <Writing kind={writing} start={writing === "correction" ? answer : ""} onClose={() => setWriting(null)}
        onWritten={async (text) => (await sent(of, writing, text)) && (setWriting(null), onGiven?.())} />}
    </div>
  );
}

function Writing({ kind, start, onWritten, onClose }: {
  kind: "comment" | "correction"; start: string; onWritten: (text: string) => Promise<unknown>; onClose: () => void;
}) {
  const [text, setText] = useState(start.slice(0, LONGEST));
  const [wrong, setWrong] = useState<string | null>(null);
  const [isSending, setSending] = useState(false);
  const send = async (event: Event) => {
    event.preventDefault();
    if (text.trim() === "") return setWrong("Write something first.");
    if (kind === "correction" && text === start) return setWrong("This is the answer as it was: change it to what it should be.");
    setSending(true);
    await onWritten(text);
    setSending(false);
  };
  return (
    <Dialog title={kind === "comment" ? "Comment" : "Correct the answer"} onClose={onClose}>
      <form class="plain" onSubmit={(event) => void send(event)}>
        <TextArea label={kind === "comment" ? "What you think of it" : "What the answer should have been"} rows={8} maxLength={LONGEST}
          value={text} onValue={setText} wrong={wrong} disabled={isSending}
          hint="It is stored with your name, and what Ratchet searches for secrets is redacted." />
        <div class="buttons">
          <button type="button" class="button" onClick={onClose}>Cancel</button>
          <button type="submit" class="button main" disabled={isSending}>{isSending ? "Sending…" : "Send"}</button>
        </div>
      </form>
    </Dialog>
  );
}

async function sent(of: Target, kind: Kind, value: Value): Promise<boolean> {
  const who = session.value;
  if (who === null) return false;
  try {
    await post("/gateway/v1/feedback", feedbackOf(of, kind, value, who));
    say(`Given: ${given(kind, value)}.`);
    return true;
  } catch (error) {
    say(error instanceof ApiError ? `Not given: ${error.message}` : String(error), "bad");
    return false;
  }
}
