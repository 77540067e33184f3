// Where the API answers about rollouts.

const part = encodeURIComponent;

export const paths = {
  all: "/deployer/v1/rollouts",
  newest: (role: string) => `/deployer/v1/rollouts/${part(role)}`,
  act: (role: string, act: string) => `/deployer/v1/rollouts/${part(role)}/${act}`,
  trail: (role: string) => `/deployer/v1/rollouts/${part(role)}/trail`,
  audit: (role: string) => `/deployer/v1/rollouts/${part(role)}/audit`,
  policies: (role: string) => `/deployer/v1/policies/${part(role)}`,
  past: (role: string) => `/v1/rollouts/${part(role)}/past`,
  history: (role: string, rollout: string) => `/v1/rollouts/${part(role)}/history?rollout_id=${part(rollout)}`,
  failures: (role: string, rollout: string) => `/v1/rollouts/${part(role)}/failures?rollout_id=${part(rollout)}`,
} as const;
