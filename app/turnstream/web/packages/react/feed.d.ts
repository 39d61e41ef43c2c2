/** @import { Chat, Client, FeedEvent } from '@turnstream/client' */
/**
 * @typedef {Chat & {state: 'waiting' | 'running' | null}} ListedChat `state`: whether an answer waits for a person, or runs
 * @typedef {object} FeedState
 * @property {'loading' | 'ready' | 'failed'} status
 * @property {ListedChat[]} chats the newest page of them
 * @property {'open' | 'lost'} connection
 * @property {Error | null} error
 */
/** @extends {Store<FeedState>} */
export class FeedStore extends Store<FeedState> {
    /** @param {Client} client */
    constructor(client: Client);
    client: Client;
    #private;
}
/**
 * `state`: whether an answer waits for a person, or runs
 */
export type ListedChat = Chat & {
    state: "waiting" | "running" | null;
};
export type FeedState = {
    status: "loading" | "ready" | "failed";
    /**
     * the newest page of them
     */
    chats: ListedChat[];
    connection: "open" | "lost";
    error: Error | null;
};
import { Store } from './store.js';
import type { Client } from '@turnstream/client';
import type { Chat } from '@turnstream/client';
