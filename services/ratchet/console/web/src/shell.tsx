// The frame around every view: navigation, search, the state of live updates, who one is.

import { useEffect, useState } from "preact/hooks";
import { live, loop } from "./api/live.ts";
import { logOut, session } from "./api/session.ts";
import type { Scope } from "./api/types.ts";
import { duration } from "./format.ts";
import { href, type Route } from "./route.ts";
import { navigate, useRoute } from "./router.ts";
import { useStore } from "./store.ts";
import { Notes } from "./ui/announce.tsx";
import { Dialog } from "./ui/dialog.tsx";
import { Icon, Mark } from "./ui/icons.tsx";
import { useShortcuts } from "./ui/keys.ts";
import { Page } from "./ui/panel.tsx";
import { Banner } from "./ui/resource.tsx";
import { Pill } from "./ui/status.tsx";
import { DataText } from "./ui/text.tsx";
import { switchTheme, ThemeSwitch } from "./ui/theme.tsx";
import { useNow } from "./ui/time.tsx";
import { VIEWS, type View } from "./views.ts";

const SCOPES: readonly Scope[] = ["view", "annotate", "train", "operate", "infer"];

export function Shell() {
  const route = useRoute();
  const [isHelpOpen, setHelpOpen] = useState(false);
  const view = VIEWS.find((each) => each.path === (route.parts[0] ?? ""));
  useShortcuts({
    "?": () => setHelpOpen(true),
    "/": () => document.querySelector<HTMLElement>("input[type=search]")?.focus(),
    "g d": switchTheme,
    ...Object.fromEntries(VIEWS.map((each) => [`g ${each.key}`, () => navigate(href(each.path))])),
  });
  return (
    <>
      <a class="skip" href="#content" onClick={skip}>Skip to the content</a>
      <div class="shell">
        <Side view={view} />
        <div class="column">
          <Bar onHelp={() => setHelpOpen(true)} />
          {view === undefined ? <NoView route={route} /> : <view.component key={view.path} route={route} />}
        </div>
      </div>
      <Notes />
      {isHelpOpen && <Help onClose={() => setHelpOpen(false)} />}
    </>
  );
}

// The hash is the route: the link moves the focus by itself.
function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

function Side({ view }: { view: View | undefined }) {
  const waiting = useStore(loop)?.attention.length ?? 0;
  return (
    <div class="side">
      <a class="brand" href="#/" aria-label="Ratchet, home"><Mark /> Ratchet</a>
      <nav aria-label="Views">
        <ul>
          {VIEWS.map((each) => (
            <li key={each.path}>
              <a href={href(each.path)} aria-current={each === view ? "page" : undefined}>
                <Icon name={each.icon} /> {each.title}
                {each.path === "" && waiting > 0 && <Pill tone="warn">{waiting}<span class="hidden"> need a person</span></Pill>}
                <span class="keys" aria-hidden="true">g {each.key}</span>
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <Who />
    </div>
  );
}

function Who() {
  const who = useStore(session);
  if (who === null) return null;
  return (
    <div class="foot">
      <div class="who">
        <span class="muted">{who.key_id === null ? "No keys are asked for" : "Logged in as"}</span>
        <strong><DataText text={who.name} /></strong>
        <div class="scopes">{SCOPES.filter((scope) => who[scope]).map((scope) => <Pill key={scope} tone="none">{scope}</Pill>)}</div>
      </div>
      {who.key_id !== null && <button type="button" class="button small" onClick={logOut}>Log out</button>}
    </div>
  );
}

function Bar({ onHelp }: { onHelp: () => void }) {
  return (
    <header class="bar">
      <LiveState />
      <span class="grow" />
      <ThemeSwitch />
      <button type="button" class="button quiet small" onClick={onHelp}>Keys <kbd>?</kbd></button>
    </header>
  );
}

function LiveState() {
  const { state, lastAt } = useStore(live);
  const now = useNow();
  const age = lastAt === null ? null : duration(Math.max(1, Math.round((now - lastAt) / 1000)));
  const words = { waiting: "connecting", live: "live", stopped: age === null ? "no live updates" : `no live updates for ${age}` }[state];
  return (
    <span class="live" data-state={state}>
      <span class="dot" aria-hidden="true" /> {words}
      <span class="hidden" role="status">{state === "stopped" ? "Live updates stopped; the page connects again by itself." : ""}</span>
    </span>
  );
}

function NoView({ route }: { route: Route }) {
  return (
    <Page title="No such page">
      <Banner tone="warn" title={`There is no view “${route.parts.join("/")}”.`}><p><a href="#/">Back to the loop</a></p></Banner>
    </Page>
  );
}

function Help({ onClose }: { onClose: () => void }) {
  const rows: [string, string][] = [
    ...VIEWS.map((each): [string, string] => [`g ${each.key}`, each.title]),
    ["/", "Search or filter, where the view has it"],
    ["g d", "Change between system, light and dark"],
    ["?", "These keys"],
    ["Esc", "Close a dialog"],
  ];
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="facts">
        {rows.map(([keys, what]) => [<dt key={`${keys}?`}>{keys.split(" ").map((one) => <kbd key={one}>{one}</kbd>)}</dt>, <dd key={keys}>{what}</dd>])}
      </dl>
      <div class="buttons"><button type="button" class="button" onClick={onClose}>Close</button></div>
    </Dialog>
  );
}

/** While a tab begins: the console is asked who its user is. */
export function Starting() {
  const [isSlow, setSlow] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setSlow(true), 400);
    return () => clearTimeout(timer);
  }, []);
  return <main class="login" aria-busy="true">{isSlow && <p class="muted" role="status">Asking the console who you are…</p>}</main>;
}
