// Signs, drawn on a grid of 16; always beside a word, so readers of the page hear the word alone.

const PATHS = {
  loop: "M3 8a5 5 0 0 1 8.6-3.5M13 8a5 5 0 0 1-8.6 3.5M11.8 1.8v2.9H8.9M4.2 14.2v-2.9h2.9",
  rollout: "M2 13h3V9h4V5h5M11 2l3 3-3 3",
  policy: "M8 1.8 13.5 4v4c0 3-2.2 5.2-5.5 6.2C4.7 13.2 2.5 11 2.5 8V4ZM5.6 8l1.7 1.7L10.6 6.4",
  trajectory: "M2.5 3.5h11v7h-6l-3 2.5v-2.5h-2ZM5 6h6M5 8.2h4",
  training: "M2 13h12M3 10.5 6 7l2.5 2L13 3.5",
  chart: "M2.5 2.5v11h11M5.5 11V8M8.5 11V4.5M11.5 11V6.5",
  annotate: "M8 13.5S2.5 10.5 2.5 6.5a2.7 2.7 0 0 1 5.5-1 2.7 2.7 0 0 1 5.5 1C13.5 10.5 8 13.5 8 13.5Z",
  person: "M8 2a3 3 0 1 1 0 6 3 3 0 0 1 0-6ZM2.5 14c.5-3 2.5-4.5 5.5-4.5s5 1.5 5.5 4.5",
  panel: "M2 3.5h12v9H2ZM2 6.5h12M6 6.5v6",
  good: "M3 8.5 6.5 12 13 4.5",
  bad: "M4 4l8 8M12 4l-8 8",
  warn: "M8 2 14.5 13.5h-13ZM8 6.5v3.2M8 11.4v.6",
  info: "M8 1.8a6.2 6.2 0 1 1 0 12.4 6.2 6.2 0 0 1 0-12.4ZM8 7.3v4M8 4.7v.5",
  wait: "M8 1.8a6.2 6.2 0 1 1 0 12.4 6.2 6.2 0 0 1 0-12.4ZM8 4.5V8l2.3 1.8",
  run: "M5 3l8 5-8 5Z",
  pause: "M5 3v10M11 3v10",
  stop: "M4 4h8v8H4Z",
  up: "M2.5 7H5v6.5H2.5ZM5 7.5 8 2c1.5 0 2 1 1.7 2.2L9.2 6.5h3.3c.8 0 1.2.7 1 1.5l-1.2 4.5c-.2.6-.6 1-1.3 1H5",
  down: "M2.5 9H5V2.5H2.5ZM5 8.5 8 14c1.5 0 2-1 1.7-2.2L9.2 9.5h3.3c.8 0 1.2-.7 1-1.5l-1.2-4.5c-.2-.6-.6-1-1.3-1H5",
  tool: "M10.5 2a3.5 3.5 0 0 0-3.3 4.7L2.3 11.6l2.1 2.1 4.9-4.9A3.5 3.5 0 0 0 14 5.5l-2.2 1.2-1.5-.6-.3-1.7Z",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9ZM10.3 10.3 14 14",
  light: "M8 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6ZM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  dark: "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3Z",
  system: "M2 3h12v8H2ZM6 14h4M8 11v3",
  close: "M4 4l8 8M12 4l-8 8",
  dash: "M4 8h8",
  agent: "M4 5.5h8v7H4ZM8 5.5V2.8M6.5 8.5v1M9.5 8.5v1M1.8 8v2M14.2 8v2",
  gateway: "M2 4h12M2 8h12M2 12h12M5 2.5v3M11 6.5v3M6.5 10.5v3",
  stream: "M2 5c2-2 4 2 6 0s4-2 6 0M2 9c2-2 4 2 6 0s4-2 6 0M2 13c2-2 4 2 6 0s4-2 6 0",
  reward: "M8 2l1.8 3.8 4.2.5-3.1 2.9.8 4.2L8 11.3l-3.7 2.1.8-4.2L2 6.3l4.2-.5Z",
  gate: "M3 14V3.5h10V14M3 7h10M6.3 7v7M9.7 7v7",
  canary: "M2.5 12c4 1.5 9 .5 9.5-4.5l2-1.5-2-.7A2.8 2.8 0 0 0 6.7 5.2C6.5 8 5 10 2.5 12ZM9.7 5.3v.1",
  workflow: "M2 6h4v4H2ZM10 2h4v4h-4ZM10 10h4v4h-4ZM6 8h2V4h2M8 8v4h2",
  route: "M3 13V9.5A2.5 2.5 0 0 1 5.5 7H13M10.5 4.5 13 7l-2.5 2.5M3 13V3",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg viewBox="0 0 16 16" width={size} height={size} fill="none" stroke="currentColor" stroke-width="1.6"
      stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Mark() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="#3451d1" />
      <path d="M9 20.5a8 8 0 1 1 14.9-2.2m-4.3-2.7 4.2 3.6 3-4.6" fill="none" stroke="#fff" stroke-width="3"
        stroke-linecap="round" stroke-linejoin="round" />
      <circle cx="15.8" cy="16" r="2.6" fill="#fff" />
    </svg>
  );
}
