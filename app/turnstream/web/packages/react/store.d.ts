/** @template State */
export class Store<State> {
    /** @param {State} state */
    constructor(state: State);
    state: State;
    shown: State;
    initial: State;
    /**
     * Follows the server from the first listener on, and until shortly after the last one: in StrictMode a component leaves
     * and comes back at once.
     * @param {() => void} listener
     */
    subscribe: (listener: () => void) => () => void;
    get following(): boolean;
    /** Called when no listener is left. */
    left(): void;
    snapshot: () => State;
    /** What was rendered on the server, and is there when the page is hydrated. */
    serverSnapshot: () => State;
    /** Changes members of the state. All changes until the listeners are called are one for them. @param {Partial<State>} part */
    change(part: Partial<State>): void;
    flush(): void;
    /**
     * Follows the server until `signal` is aborted. Throws Refused.
     * @param {AbortSignal} _signal @returns {Promise<void>}
     */
    follow(_signal: AbortSignal): Promise<void>;
    /**
     * Reads until the server answers. Throws Refused.
     * @param {import('@turnstream/client').Client} client @param {string} path @param {AbortSignal} [signal]
     */
    read(client: import("@turnstream/client").Client, path: string, signal?: AbortSignal): Promise<any>;
    #private;
}
