// The route in the address bar, as a hook. Links are ordinary <a href="#/...">.

import { parseRoute, type Route } from "./route.ts";
import { Store, useStore } from "./store.ts";

const current = new Store<Route>(parseRoute(location.hash));
addEventListener("hashchange", () => current.set(parseRoute(location.hash)));

export function useRoute(): Route {
  return useStore(current);
}

export function navigate(to: string, { replace = false } = {}): void {
  if (!replace) {
    location.hash = to;
    return;
  }
  history.replaceState(null, "", to);
  current.set(parseRoute(to));
}
