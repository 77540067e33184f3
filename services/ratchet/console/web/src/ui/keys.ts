// Keyboard shortcuts: single keys, and pairs that begin with g. They rest while one types, scrolls or selects, and a key that is
// held acts once.

import { useLayoutEffect, useRef } from "preact/hooks";

export type Shortcuts = Readonly<Record<string, () => void>>;

const PAIR_MS = 1_500;

/** While the view is open: { "j": next, "g l": goLoop }. */
export function useShortcuts(shortcuts: Shortcuts): void {
  const latest = useRef(shortcuts);
  latest.current = shortcuts;
  // Before the page is painted: what one sees can be used.
  useLayoutEffect(() => {
    let first: { key: string; at: number } | null = null;
    const listen = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
      if (isTyping(event.target) || (isArrow(event) && (event.shiftKey || isScrolled(event.target)))) return;
      const pair = first !== null && event.timeStamp - first.at < PAIR_MS ? `${first.key} ${event.key}` : null;
      first = { key: event.key, at: event.timeStamp };
      const act = (pair !== null && latest.current[pair]) || latest.current[event.key];
      if (act === undefined) return;
      event.preventDefault();
      first = null;
      act();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, []);
}

function isArrow(event: KeyboardEvent): boolean {
  return event.key.startsWith("Arrow");
}

/** Inside something that the arrows scroll. */
function isScrolled(target: EventTarget | null): boolean {
  for (let at = target instanceof Element ? target : null; at !== null && at !== document.body; at = at.parentElement) {
    const { overflowX, overflowY } = getComputedStyle(at);
    if (at.scrollWidth > at.clientWidth && /auto|scroll/.test(overflowX)) return true;
    if (at.scrollHeight > at.clientHeight && /auto|scroll/.test(overflowY)) return true;
  }
  return false;
}

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || target.closest("dialog") !== null;
}
