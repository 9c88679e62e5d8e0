import java.io.*;
import java.util.function.*;
import java.util.regex.*;

/**
 * First the names, with commas in between; then a pattern a line, each answered with a 0 or 1 for each name, or why not.
 * With the argument re2j as the brokers read a pattern, else as Java does.
 */
class JavaPatterns {
  public static void main(String[] args) throws IOException {
    var in = new BufferedReader(new InputStreamReader(System.in));
    var out = new PrintWriter(new BufferedWriter(new OutputStreamWriter(System.out)));
    Function<String, Predicate<String>> compile = args.length > 0 ? JavaPatterns::re2j : JavaPatterns::java;
    String[] names = in.readLine().split(",");
    for (String line; (line = in.readLine()) != null; ) {
      var answer = new StringBuilder();
      try {
        var matches = compile.apply(line);
        for (String name : names) answer.append(matches.test(name) ? '1' : '0');
      } catch (IllegalArgumentException | NullPointerException | StackOverflowError wrong) {
        answer.append("! ").append(wrong);
      }
      out.println(answer.toString().replace('\n', ' '));
    }
    out.flush();
  }

  private static Predicate<String> java(String pattern) {
    var compiled = Pattern.compile(pattern);
    return name -> compiled.matcher(name).matches();
  }

  private static Predicate<String> re2j(String pattern) {
    var compiled = com.google.re2j.Pattern.compile(pattern);
    return name -> compiled.matcher(name).matches();
  }
}
