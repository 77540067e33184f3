// The start: who the user is, then either the log-in page or the views with their stream of events.

import "./styles/index.css";
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { follow } from "./api/live.ts";
import { session } from "./api/session.ts";
import { LogIn, resume } from "./login.tsx";
import { Shell, Starting } from "./shell.tsx";
import { useStore } from "./store.ts";
import { applyTheme } from "./ui/theme.tsx";

function Console() {
  const who = useStore(session);
  const [isKnown, setKnown] = useState(false);
  useEffect(() => void resume().finally(() => setKnown(true)), []);
  useEffect(() => {
    if (who === null) return;
    const stop = new AbortController();
    void follow(stop.signal);
    return () => stop.abort();
  }, [who]);
  if (who !== null) return <Shell />;
  return isKnown ? <LogIn /> : <Starting />;
}

applyTheme();
const place = document.getElementById("console");
if (place !== null) render(<Console />, place);
