// What screen readers hear: changes of state, and nothing of what moves each second.

import { byId } from "./dom.js";
import { titleOf } from "./states.js";

const most = 3;

let known; // states by UID
let phase;

export function announce(page) {
  const news = [];
  if (known && page.phase !== phase) news.push(`${page.kind} ${page.name}: ${page.phase}`);
  const changed = known ? page.volumes.filter((volume) => known.get(volume.id) !== volume.state) : [];
  news.push(...changed.slice(0, most).map((volume) => `${titleOf(volume)}: ${volume.state}`));
  if (changed.length > most) news.push(`and ${changed.length - most} more`);
  known = new Map(page.volumes.map((volume) => [volume.id, volume.state]));
  phase = page.phase;
  if (news.length > 0) byId("announcement").textContent = `${news.join(". ")}.`;
}
