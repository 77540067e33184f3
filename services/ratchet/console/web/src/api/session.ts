// The key of this tab, and who it belongs to.

import { Store } from "../store.ts";
import type { Scope, Session } from "./types.ts";

const PLACE = "ratchet.key";

/** What one key saw is forgotten with it: every store of answers subscribes. */
export const key = new Store<string | null>(sessionStorage.getItem(PLACE));
export const session = new Store<Session | null>(null);
/** Where people sign in at an issuer; null where there is none. */
export const issuer = new Store<string | null>(null);
/** Why the log-in page is shown, in the service's words. */
export const refused = new Store<string | null>(null);

export function keep(own: string | null): void {
  if (own === null) sessionStorage.removeItem(PLACE);
  else sessionStorage.setItem(PLACE, own);
  key.set(own);
}

/** A service does not take `own` any more: back to the log-in page, unless another key has taken its place. */
export function expire(own: string | null, message: string): void {
  if (own !== key.value) return;
  refused.set(key.value === null ? null : message);
  keep(null);
  session.set(null);
}

/** Forgets the key of this tab; a person who signed in is signed out of this browser. */
export function logOut(): void {
  if (session.value?.key_id?.startsWith("oidc_") === true) void fetch("sign-out", { method: "POST" }).catch(() => undefined);
  refused.set(null);
  keep(null);
  session.set(null);
}

/** Why the user may not do it; null when they may. */
export function whyNot(scope: Scope): string | null {
  const who = session.value;
  if (who === null || who[scope]) return null;
  return `The key “${who.name}” lacks the scope ${scope}.`;
}
