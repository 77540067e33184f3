// Where the API answers about policies.

const part = encodeURIComponent;

export const paths = {
  all: "/coordinator/v1/models",
  lineage: (role: string, version: number, offset = 0) => `/coordinator/v1/models/${part(role)}/${version}/lineage?limit=50&offset=${offset}`,
  prompts: (role: string, version: number) => `/coordinator/v1/replay/prompts?role=${part(role)}&version=${version}&limit=20`,
  bundle: (role: string, version: number) => `/deployer/v1/policies/${part(role)}/${version}/bundle`,
  chat: "/gateway/v1/chat/completions",
} as const;
