// What a view shows of the API: asked for when the view opens, again when something changed, and never thrown away
// because asking again failed.

import { useEffect, useReducer, useRef } from "preact/hooks";
import { ApiError, request } from "./client.ts";
import { live, onHint } from "./live.ts";
import { key } from "./session.ts";
import type { Hint } from "./types.ts";

const KEPT = 64;
const GATHER_MS = 250;
const RETRY_MS = 5_000;

export interface Resource<T> {
  /** The last good answer. */
  readonly data: T | null;
  /** Why the last request failed; `data` may be an older answer. */
  readonly error: ApiError | null;
  /** When `data` came, in milliseconds. */
  readonly at: number | null;
  readonly isLoading: boolean;
  readonly reload: () => void;
}

export interface ResourceOptions {
  /** Ask again after such a hint. */
  readonly on?: (hint: Hint) => boolean;
  /** Ask again after this many milliseconds. */
  readonly everyMs?: number;
}

interface Answer {
  readonly data: unknown;
  readonly at: number;
}

const answers = new Map<string, Answer>();

// Another key may see other things.
key.subscribe(() => answers.clear());

function remember(path: string, answer: Answer): void {
  answers.delete(path);
  answers.set(path, answer);
  for (const oldest of answers.keys()) {
    if (answers.size <= KEPT) return;
    answers.delete(oldest);
  }
}

/** Follows the answer of GET `path`; null asks for nothing. */
export function useResource<T>(path: string | null, options: ResourceOptions = {}): Resource<T> {
  const [, render] = useReducer((times: number) => times + 1, 0);
  const state = useRef<{ path: string | null; error: ApiError | null; isLoading: boolean }>({ path: null, error: null, isLoading: false });
  const latest = useRef(options);
  latest.current = options;
  const reload = useRef<() => void>(() => undefined);
  if (state.current.path !== path) state.current = { path, error: null, isLoading: path !== null };

  useEffect(() => {
    if (path === null) return;
    const asker = new Asker<T>(path, () => latest.current.everyMs, (error, isLoading) => {
      state.current = { path, error, isLoading };
      render(undefined);
    });
    reload.current = () => asker.soon();
    const end = onHint((hint) => latest.current.on?.(hint) === true && asker.soon());
    // Hints of the time without live updates are lost.
    let before = live.value.state;
    const endLive = live.subscribe(({ state }) => {
      if (before === "stopped" && state === "live") asker.soon();
      before = state;
    });
    asker.ask();
    return () => (end(), endLive(), asker.stop());
  }, [path]);

  const answer = path === null ? undefined : answers.get(path);
  return {
    data: (answer?.data as T | undefined) ?? null,
    at: answer?.at ?? null,
    error: state.current.error,
    isLoading: state.current.isLoading,
    reload: () => reload.current(),
  };
}

/** Asks for one path, at most once at a time, and again soon after a failure of the service. */
class Asker<T> {
  readonly #stop = new AbortController();
  readonly #path: string;
  readonly #everyMs: () => number | undefined;
  readonly #changed: (error: ApiError | null, isLoading: boolean) => void;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isAsking = false;
  #isOutdated = false;

  constructor(path: string, everyMs: () => number | undefined, changed: (error: ApiError | null, isLoading: boolean) => void) {
    this.#path = path;
    this.#everyMs = everyMs;
    this.#changed = changed;
  }

  /** Several hints within a moment are one request. */
  soon(): void {
    this.#later(GATHER_MS);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#stop.abort();
  }

  ask(): void {
    if (this.#isAsking) {
      this.#isOutdated = true;
      return;
    }
    this.#isAsking = true;
    this.#isOutdated = false;
    request<T>(this.#path, { signal: this.#stop.signal }).then(
      (data) => this.#answered(data),
      (error: unknown) => this.#failed(error),
    );
  }

  #answered(data: T): void {
    this.#isAsking = false;
    if (this.#stop.signal.aborted) return;
    remember(this.#path, { data, at: Date.now() });
    this.#changed(null, false);
    const everyMs = this.#everyMs();
    if (this.#isOutdated) this.soon();
    else if (everyMs !== undefined) this.#later(everyMs);
  }

  #failed(error: unknown): void {
    this.#isAsking = false;
    if (this.#stop.signal.aborted) return;
    const known = error instanceof ApiError ? error : new ApiError(0, "console", String(error));
    this.#changed(known, false);
    if (known.isOutage) this.#later(RETRY_MS);
  }

  #later(ms: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.ask(), ms);
  }
}
