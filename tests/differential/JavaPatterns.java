import java.io.*;
import java.util.regex.*;

/** First the names, with commas in between; then a pattern a line, each answered with a 0 or 1 for each name, or why not. */
class JavaPatterns {
  public static void main(String[] args) throws IOException {
    var in = new BufferedReader(new InputStreamReader(System.in));
    var out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out)));
    String[] names = in.readLine().split(",");
    for (String line; (line = in.readLine()) != null; ) {
      var answer = new StringBuilder();
      try {
        Pattern pattern = Pattern.compile(line);
        for (String name : names) answer.append(pattern.matcher(name).matches() ? '1' : '0');
      } catch (PatternSyntaxException | NullPointerException | StackOverflowError wrong) {
        answer.append("! ").append(wrong.getClass().getSimpleName());
      }
      out.println(answer);
    }
    out.flush();
  }
}
