// The log-in page: a key of `ratchet keys create`, kept by this tab alone.

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, request } from "./api/client.ts";
import { issuer, keep, refused, session } from "./api/session.ts";
import type { Session } from "./api/types.ts";
import { useStore } from "./store.ts";
import { TextField } from "./ui/form.tsx";
import { Mark } from "./ui/icons.tsx";
import { Banner } from "./ui/resource.tsx";
import { ThemeSwitch } from "./ui/theme.tsx";

export function LogIn() {
  const why = useStore(refused);
  const [own, setOwn] = useState("");
  const [isAsking, setAsking] = useState(false);
  const signIn = useStore(issuer);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => {
    document.title = "Log in · Ratchet";
    form.current?.querySelector("input")?.focus();
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (own.trim() === "") return refused.set("Enter a key first.");
    setAsking(true);
    await logIn(own.trim());
    setAsking(false);
  };
  return (
    <main class="login" id="content">
      <form ref={form} onSubmit={(event) => void submit(event)}>
        <h1><Mark /> Ratchet</h1>
        <p class="muted">Log in with a key of this installation. The key decides what you see and may do, and every act carries its name.</p>
        {why !== null && <Banner tone="warn" title={why} />}
        <TextField label="Key" type="password" autocomplete="current-password" spellcheck={false} value={own} onValue={setOwn} disabled={isAsking}
          hint={<><code>ratchet keys create NAME --scope view</code> makes one. It stays in this tab and is gone when you close it.</>} />
        <button type="submit" class="button main" disabled={isAsking}>{isAsking ? "Asking…" : "Log in"}</button>
        {signIn !== null && <a class="button" href={signIn}>Sign in without a key</a>}
        <div><ThemeSwitch /></div>
      </form>
    </main>
  );
}

/** Takes the key when the console knows it; else says why not. */
async function logIn(own: string): Promise<void> {
  keep(own);
  try {
    session.set(await request<Session>("/v1/session"));
    refused.set(null);
  } catch (error) {
    keep(null);
    refused.set(error instanceof ApiError ? error.message : String(error));
  }
}

/** At the start of a tab: with the key that it kept, or without one where the installation asks for none. */
export async function resume(): Promise<void> {
  try {
    session.set(await request<Session>("/v1/session"));
  } catch (error) {
    if (error instanceof ApiError && error.status !== 401) refused.set(error.message);
  }
}
