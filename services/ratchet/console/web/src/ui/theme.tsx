// Light, dark, or what the system says; kept in this browser.

import { Store, useStore } from "../store.ts";
import { Icon, type IconName } from "./icons.tsx";

type Theme = "system" | "light" | "dark";

const PLACE = "ratchet.theme";
const NEXT: Readonly<Record<Theme, Theme>> = { system: "light", light: "dark", dark: "system" };
const ICONS: Readonly<Record<Theme, IconName>> = { system: "system", light: "light", dark: "dark" };
const theme = new Store<Theme>(kept());

function kept(): Theme {
  const value = localStorage.getItem(PLACE);
  return value === "light" || value === "dark" ? value : "system";
}

export function applyTheme(): void {
  const chosen = theme.value;
  if (chosen === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = chosen;
}

export function switchTheme(): void {
  theme.set(NEXT[theme.value]);
  localStorage.setItem(PLACE, theme.value);
  applyTheme();
}

export function ThemeSwitch() {
  const chosen = useStore(theme);
  return (
    <button type="button" class="button quiet small" onClick={switchTheme} aria-label={`Theme: ${chosen}. Change to ${NEXT[chosen]}`}>
      <Icon name={ICONS[chosen]} /> {chosen}
    </button>
  );
}
