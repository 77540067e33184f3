// The list of trajectories: a search that stays in the address, pages by cursor, the keyboard, and a hint of new ones.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { onHint } from "../../api/live.ts";
import { useResource } from "../../api/resource.ts";
import type { ConsoleSchemas } from "../../api/types.ts";
import { count, duration, plural, shortId } from "../../format.ts";
import { Calls, Outcome, PolicyOf, RewardOf, Thumbs, titleOf, type Brief } from "../../parts/brief.tsx";
import { EndFields, OriginFields } from "../../parts/filters.tsx";
import { RoleSelect } from "../../parts/roles.tsx";
import { href, type Route } from "../../route.ts";
import { navigate } from "../../router.ts";
import { Select, TextField } from "../../ui/form.tsx";
import { useShortcuts } from "../../ui/keys.ts";
import { Empty, Page, Panel } from "../../ui/panel.tsx";
import { Banner, Loaded } from "../../ui/resource.tsx";
import { Table } from "../../ui/table.tsx";
import { DataText, Short } from "../../ui/text.tsx";
import { Ago } from "../../ui/time.tsx";
import { NONE_SEEN, numberOf, seenAfter } from "./fresh.ts";
import { isDetailed, isEmptySearch, pathOf, REASONS, searchOf, WITHIN, wrongWith, type Search } from "./search.ts";

type Answer = ConsoleSchemas["TrajectoriesOut"];

export function TrajectoryList({ route }: { route: Route }) {
  const search = searchOf(route.params);
  const after = route.params["after"] ?? null;
  const asked = JSON.stringify([search, after]);
  const [times, setTimes] = useState(0);
  const wrong = wrongWith(search);
  const path = useMemo(() => (wrong === null ? pathOf(search, after, Date.now()) : null), [asked, times]);
  const page = useResource<Answer>(path);
  const [fresh, forget] = useFresh(search.role, `${asked}${times}`);
  const list = useRef<HTMLDivElement>(null);
  useRowKeys(list);
  const renew = () => {
    forget();
    setTimes(times + 1);
    page.reload();
    if (after !== null) navigate(href("trajectories", { ...search }));
  };
  return (
    <Page title="Trajectories" lead="What agents did, also where they still work. Open a trajectory to read it, rate it, and see what it teaches.">
      <SearchForm key={asked} search={search} wrong={wrong} />
      <Panel title={after === null ? "Newest first" : "Older ones"} flush actions={<Fresh number={fresh} onShow={renew} />}>
        <Loaded of={page} what="the trajectories">{(answer) => (
          <div ref={list}>
            <Rows answer={answer} isSearched={!isEmptySearch(search)} />
            <nav class="pages row" aria-label="Pages">
              {after !== null && <a class="button" href={href("trajectories", { ...search })}>Newest</a>}
              {answer.next !== null && <a class="button" href={href("trajectories", { ...search, after: answer.next })}>Older</a>}
              <span class="muted small grow">{plural(answer.trajectories.length, "trajectory", "trajectories")} on this page{answer.next === null ? "; there are no older ones" : ""}. <kbd>j</kbd> <kbd>k</kbd> move, <kbd>Enter</kbd> opens.</span>
            </nav>
          </div>
        )}</Loaded>
      </Panel>
    </Page>
  );
}

function Rows({ answer, isSearched }: { answer: Answer; isSearched: boolean }) {
  return (
    <>
      {answer.searched_since !== null && <div class="inset"><Banner tone="info" title="The texts of older trajectories were not read yet: “Older” goes on searching there." /></div>}
      {answer.trajectories.length === 0
        ? <Empty>{isSearched ? <><p>No trajectory is like that.</p><p><a href={href("trajectories")}>Show all</a></p></> : <p>No trajectory yet: the first call through the gateway makes one.</p>}</Empty>
        : <Table caption="Trajectories" rows={answer.trajectories} rowKey={(one) => `${one.role} ${one.trajectory_id}`} columns={[
          { name: "Trajectory", show: (one) => <Name brief={one} /> },
          { name: "Outcome", show: (one) => <Outcome brief={one} /> },
          { name: "Reward", isNumber: true, show: (one) => <RewardOf brief={one} /> },
          { name: "Thumbs", show: (one) => <Thumbs value={one.thumbs} /> },
          { name: "Answered by", show: (one) => <PolicyOf brief={one} /> },
          { name: "Calls", isNumber: true, show: (one) => <Calls brief={one} /> },
          { name: "Time in calls", isNumber: true, show: (one) => (one.latency_ms === null ? "–" : duration(one.latency_ms / 1000)) },
          { name: "Agent", show: (one) => <Short text={one.agent_id} /> },
          { name: "When", show: (one) => <Ago at={one.ended_at ?? one.started_at} /> },
        ]} />}
    </>
  );
}

function Name({ brief }: { brief: Brief }) {
  return (
    <a class="open" href={href("trajectories", brief.trajectory_id, { role: brief.role })}>
      <span class="task wrap block"><DataText text={titleOf(brief)} most={80} /></span>
      {brief.question !== null && brief.question !== titleOf(brief) && <span class="small muted wrap block"><DataText text={brief.question} most={80} /></span>}
      <span class="row small"><span class="id">{shortId(brief.trajectory_id)}</span> <span class="muted nowrap"><DataText text={brief.role} /></span></span>
    </a>
  );
}

/** How many trajectories are new or changed since the page was asked for. */
function useFresh(role: string, asked: string): [number, () => void] {
  const [seen, setSeen] = useState(NONE_SEEN);
  useEffect(() => {
    setSeen(NONE_SEEN);
    return onHint((hint) => setSeen((before) => seenAfter(before, hint, role)));
  }, [role, asked]);
  return [numberOf(seen), () => setSeen(NONE_SEEN)];
}

function Fresh({ number, onShow }: { number: number; onShow: () => void }) {
  return (
    <span role="status">
      {number > 0 && <button type="button" class="button small" onClick={onShow}>{count(number)} new or changed: show</button>}
    </span>
  );
}

/** j and k move the focus along the rows; Enter opens the link, as it always does. */
function useRowKeys(list: { readonly current: HTMLElement | null }): void {
  const move = (step: number) => {
    const links = [...(list.current?.querySelectorAll<HTMLElement>("a.open") ?? [])];
    const at = links.findIndex((link) => link === document.activeElement);
    links[at < 0 ? 0 : Math.max(0, Math.min(links.length - 1, at + step))]?.focus();
  };
  useShortcuts({ j: () => move(1), k: () => move(-1) });
}

function SearchForm({ search, wrong }: { search: Search; wrong: string | null }) {
  const [draft, setDraft] = useState(search);
  const change = (name: keyof Search) => (value: string) => setDraft({ ...draft, [name]: value });
  /** A choice is asked for at once, with what is typed already. */
  const choose = (name: keyof Search) => (value: string) => navigate(href("trajectories", { ...draft, [name]: value }), { replace: true });
  const submit = (event: Event) => {
    event.preventDefault();
    navigate(href("trajectories", { ...draft }));
  };
  return (
    <form class="search" role="search" onSubmit={submit}>
      <div class="fields">
        <div class="wide"><TextField label="Text" type="search" placeholder="words of the conversation" maxLength={1000} value={draft.text} onValue={change("text")} /></div>
        <RoleSelect value={draft.role} onValue={choose("role")} />
        <Select label="State" value={draft.state} onValue={choose("state")} options={[["", "any"], "open", "ended"]} />
        <EndFields draft={draft} choose={choose} />
        <Select label="Time" value={draft.within} onValue={choose("within")} options={WITHIN} />
      </div>
      <details open={isDetailed(search)}>
        <summary>Policy, reward, reason, agent, domain, model, exact times</summary>
        <div class="fields">
          <TextField label="Reward from" placeholder="0" value={draft.reward_min} onValue={change("reward_min")} />
          <TextField label="Reward to" placeholder="1" value={draft.reward_max} onValue={change("reward_max")} />
          <Select label="Teaches nothing because" value={draft.reason} onValue={choose("reason")} options={[["", "any or none"], ...REASONS]} />
          <OriginFields draft={draft} change={change} />
        </div>
      </details>
      {wrong !== null && <p class="wrong" role="alert">{wrong}</p>}
      <div class="row">
        <button type="submit" class="button main">Search</button>
        {!isEmptySearch(search) && <a class="button" href={href("trajectories")}>Show all</a>}
      </div>
    </form>
  );
}
