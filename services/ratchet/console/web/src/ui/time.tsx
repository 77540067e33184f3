// Times that grow older while one looks: one clock for the whole page.

import { ago, instant } from "../format.ts";
import { Store, useStore } from "../store.ts";

export const now = new Store(Date.now());
setInterval(() => document.visibilityState === "visible" && now.set(Date.now()), 1_000);
document.addEventListener("visibilitychange", () => now.set(Date.now()));

export function useNow(): number {
  return useStore(now);
}

/** How long ago; the exact time on hover. */
export function Ago({ at }: { at: string }) {
  return <time dateTime={at} title={instant(at)} class="nowrap">{ago(at, useNow())}</time>;
}
