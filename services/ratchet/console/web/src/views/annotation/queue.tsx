// The queue: one trajectory after the other, by keys alone.

import { useEffect, useState } from "preact/hooks";
import { useResource } from "../../api/resource.ts";
import type { ConsoleSchemas } from "../../api/types.ts";
import { count, measure } from "../../format.ts";
import { Conversation } from "../../parts/conversation.tsx";
import { Outcome, PolicyOf, type Brief } from "../../parts/brief.tsx";
import { Rating } from "../../parts/rating.tsx";
import { href } from "../../route.ts";
import { useShortcuts } from "../../ui/keys.ts";
import { Empty, Panel } from "../../ui/panel.tsx";
import { Loaded } from "../../ui/resource.tsx";
import { DataText } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { annotationPath } from "./annotation.tsx";

type Answer = ConsoleSchemas["QueueOut"];
type Trajectory = ConsoleSchemas["TrajectoryOut"];

export function Queue({ role }: { role: string }) {
  const queue = useResource<Answer>(annotationPath("queue", role));
  // What one works through stays as it is, until it is done.
  const [taken, setTaken] = useState<Answer | null>(null);
  const [place, setPlace] = useState(0);
  const begin = () => {
    setTaken(queue.data);
    setPlace(0);
  };
  useEffect(() => {
    if (queue.data !== null && queue.data !== taken && (taken === null || place >= taken.trajectories.length)) begin();
  }, [queue.data, place]);
  const move = (step: number) => {
    if (taken === null) return;
    const next = Math.max(0, Math.min(taken.trajectories.length, place + step));
    setPlace(next);
    if (next === taken.trajectories.length) queue.reload();
    scrollTo({ top: 0 });
  };
  useShortcuts({ n: () => move(1), p: () => move(-1), j: () => move(1), k: () => move(-1) });
  const shown = taken?.trajectories[place];
  return (
    <Loaded of={queue} what="the queue">{(answer) => {
      if (taken === null) return null;
      if (shown === undefined) return <Done answer={answer} onReload={queue.reload} />;
      return (
        <>
          <p class="row">
            <span class="grow muted">{count(place + 1)} of {count(taken.trajectories.length)} here, {count(taken.remaining)} of the newest 500 without your rating</span>
            <button type="button" class="button" onClick={() => move(-1)}>Back <kbd>p</kbd></button>
            <button type="button" class="button main" onClick={() => move(1)}>Next <kbd>n</kbd></button>
          </p>
          <One key={`${shown.role} ${shown.trajectory_id}`} brief={shown} />
          <Ahead brief={taken.trajectories[place + 1]} />
        </>
      );
    }}</Loaded>
  );
}

function pathTo(brief: Brief): string {
  return `/v1/trajectories/${encodeURIComponent(brief.trajectory_id)}?role=${encodeURIComponent(brief.role)}`;
}

function One({ brief }: { brief: Brief }) {
  const one = useResource<Trajectory>(pathTo(brief));
  return (
    <Panel title={brief.task_id ?? "A trajectory"} actions={<a href={href("trajectories", brief.trajectory_id, { role: brief.role })}>All about it</a>}>
      <div class="row wide small">
        <Outcome brief={brief} />
        <span class="muted"><DataText text={brief.role} /></span>
        <PolicyOf brief={brief} />
        <span class="muted">reward {brief.reward === null ? "none" : measure(brief.reward)}</span>
        <span class="muted"><Ago at={brief.ended_at ?? brief.started_at} /></span>
      </div>
      <Loaded of={one} what="the trajectory">{(trajectory) => (
        <>
          <Conversation messages={trajectory.messages} calls={[]} whole={(index) => pathTo(brief).replace("?", `/messages/${index}?`)} />
          <div class="foot-bar">
            <Rating of={brief} feedback={trajectory.feedback} answer={trajectory.messages.filter((message) => message.role === "assistant").at(-1)?.text ?? ""} />
            <span class="muted small">To change a rating, give another one.</span>
          </div>
        </>
      )}</Loaded>
    </Panel>
  );
}

/** The next one is asked for while one reads this one. */
function Ahead({ brief }: { brief: Brief | undefined }) {
  useResource<Trajectory>(brief === undefined ? null : pathTo(brief));
  return null;
}

function Done({ answer, onReload }: { answer: Answer; onReload: () => void }) {
  return (
    <Panel title="The queue">
      <Empty>
        <p>{answer.remaining === 0 ? "You have rated the newest 500, all of them. Thank you." : `These are done; ${count(answer.remaining)} are left.`}</p>
        <button type="button" class="button" onClick={onReload}>Ask for more</button>
      </Empty>
    </Panel>
  );
}
