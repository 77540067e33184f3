// The one stream of events: the loop's figures every two seconds, and hints of what changed.

import { Store } from "../store.ts";
import { errorMessage, send } from "./client.ts";
import { expire, key } from "./session.ts";
import { EventParser, type ServerEvent } from "./sse.ts";
import type { Hint, Loop } from "./types.ts";

/** The console says at least every 15 s that it is there. */
const SILENCE_MS = 40_000;
const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 15_000;

export interface Live {
  readonly state: "waiting" | "live" | "stopped";
  /** When the last event came, in milliseconds; null: none yet. */
  readonly lastAt: number | null;
}

const WAITING: Live = { state: "waiting", lastAt: null };

export const live = new Store<Live>(WAITING);
export const loop = new Store<Loop | null>(null);
// Another key may see other things.
key.subscribe(() => (live.set(WAITING), loop.set(null)));
const listeners = new Set<(hint: Hint) => void>();

/** Calls `listener` for every hint; returns what ends it. */
export function onHint(listener: (hint: Hint) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Follows the stream, and connects again after every end, until `stop` fires. */
export async function follow(stop: AbortSignal): Promise<void> {
  let pause = FIRST_PAUSE_MS;
  while (!stop.aborted) {
    const hasEnded = await readStream(stop).catch(() => false);
    if (stop.aborted) return;
    if (!hasEnded) live.set({ ...live.value, state: "stopped" });
    await sleep(pause, stop);
    pause = hasEnded ? FIRST_PAUSE_MS : Math.min(pause * 2, LONGEST_PAUSE_MS);
  }
}

/** True when the console ended a stream that had events: it does so every five minutes, to look at the key again. */
async function readStream(stop: AbortSignal): Promise<boolean> {
  const own = key.value;
  const silence = new AbortController();
  const signal = AbortSignal.any([stop, silence.signal]);
  let timer = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const response = await send("/v1/events", { signal, patienceMs: 2 ** 31 - 1 });
    if (response.status === 401) expire(own, errorMessage(await response.text()) ?? "The key is not taken any more.");
    if (!response.ok || response.body === null) return false;
    const parser = new EventParser();
    let hadEvents = false;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      if (own !== key.value) return false;
      for (const event of parser.push(part.value)) {
        hadEvents = true;
        take(event);
      }
    }
    return hadEvents;
  } finally {
    clearTimeout(timer);
  }
}

function take(event: ServerEvent): void {
  const content = parsed(event.data);
  if (content === null) return;
  live.set({ state: "live", lastAt: Date.now() });
  if (event.event === "loop") loop.set(content as Loop);
  if (event.event === "hint") for (const listener of [...listeners]) listener(content as Hint);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function sleep(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    stop.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
