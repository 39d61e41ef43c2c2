// The types of the package @turnstream/client.

export * from './turnstream.js'
export type * from './protocol.d.ts'
export type { components } from './schema.d.ts'
